"""The cause of what communication costs a run: evidence first, then rules."""
