"""Fewer bytes between nodes: formats, their codec, and the exchange that uses them."""
