"""Halo exchanges and their adjoints, over MPI or over threads that stand in for ranks."""
