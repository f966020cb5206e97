"""The ranks of the job, and the ranks that are late."""
