"""What hvd_ext changes, in one table."""
