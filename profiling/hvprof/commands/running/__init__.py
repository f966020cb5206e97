"""Subcommands for running jobs, and their readings."""
