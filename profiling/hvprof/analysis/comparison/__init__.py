"""Two sides compared, from their samples to a verdict."""
