"""Cost of recording."""
