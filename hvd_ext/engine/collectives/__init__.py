"""Collectives of ranks on several nodes: within a node by memory, between nodes by messages.

A file each. A long message crosses the network once, cut among the ranks of a node (rails); a short
one takes the MPI library's own collective. Every rank calls them in the same order.
"""
