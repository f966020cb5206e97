"""Collectives and links for one group of ranks, for every interface that calls them."""
