"""Gradients in the arena: the reducer and its parts."""
