"""Cost of a split, and a check that it equals the unsplit model."""
