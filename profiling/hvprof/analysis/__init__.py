"""Analyses of a recording; nothing here draws or prints."""
