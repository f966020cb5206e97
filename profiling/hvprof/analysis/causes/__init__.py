"""The cause of communication's cost in a run: evidence first, then rules."""
