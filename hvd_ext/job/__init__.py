"""Who takes part in the job, and who is late."""
