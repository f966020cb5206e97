"""A whole training step, with hvd_ext and its peers."""
