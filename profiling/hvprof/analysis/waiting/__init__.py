"""The time that ranks wait, the rank for which they wait, and why it is late."""
