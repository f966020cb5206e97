"""What a split costs, and whether it computes what the unsplit model does."""
