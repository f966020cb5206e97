"""Collectives and links for one group of ranks, whichever door they came through."""
