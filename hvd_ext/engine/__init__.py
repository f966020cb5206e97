"""What moves data for a group of ranks, whichever door they came through."""
