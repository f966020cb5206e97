"""The end of scaling: the time of a step on more ranks, and its limits."""
