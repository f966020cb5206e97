"""Whether hvprof names why a job hangs, and which rank to look at."""
