"""Time that ranks wait: for which rank, for how long, and why that rank is late."""
