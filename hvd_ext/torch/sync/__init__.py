"""Nodes that do not exchange in every step."""
