"""One file or package per question; each prints a table and a ratio against a peer of the same run."""
