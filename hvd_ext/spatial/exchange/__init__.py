"""Halo exchanges and their adjoints, over MPI or over threads in place of ranks."""
