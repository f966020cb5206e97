"""Where scaling stops: the time of a step on more ranks, and what bounds it."""
