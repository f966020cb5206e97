"""Mesh tangling: which cells of a simulation's mesh must be relaxed, pixel by pixel."""
