"""Gradients in the arena: the reducer and what it is made of."""
