"""The update divided over the ranks of a node."""
