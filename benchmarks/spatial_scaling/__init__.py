"""One sample shared by several ranks."""
