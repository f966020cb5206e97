"""hvd_ext's allreduce and the strongest peers on the ranks of one node."""
