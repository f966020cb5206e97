"""A file or package a question; each prints a table and a ratio to a peer of the same run."""
