"""Copies of a packed file on the nodes' own disks."""
