"""Collectives of ranks on several nodes: within a node by memory, between nodes by messages.

Each collective is a file. A long message crosses the network once, divided among the ranks of a
node (rails); a short one uses the MPI library's own collective. Every rank calls them in the same
order.
"""
