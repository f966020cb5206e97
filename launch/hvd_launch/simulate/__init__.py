"""Clusters that are not at hand: hvd_ext's algorithms as traces, replayed by SimGrid's SMPI."""
