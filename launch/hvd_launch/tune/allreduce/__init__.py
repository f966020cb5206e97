"""hvd-launch tune allreduce: the best of the algorithms at hand, by message size."""
