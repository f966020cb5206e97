"""Compute time of a model, layer by layer: measured, written and read."""
