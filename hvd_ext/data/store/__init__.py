"""Samples in the ranks' memory, kept once and read together."""
