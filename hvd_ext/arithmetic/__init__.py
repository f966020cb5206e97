"""Costs, rates, the order of a sum, and whether one of two programs is faster."""
