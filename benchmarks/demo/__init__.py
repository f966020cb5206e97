"""The effect of hvd_ext, in one table."""
