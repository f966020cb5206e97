"""Size-aware allreduce: which algorithm, by message size, and the algorithms."""
