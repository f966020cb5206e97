"""Starts training jobs with the MPI that a site has.

Importing this package starts no MPI and needs no torch.
"""
