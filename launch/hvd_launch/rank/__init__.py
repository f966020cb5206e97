"""What runs inside a rank: which GPUs it sees, and how its output and its end are reported."""
