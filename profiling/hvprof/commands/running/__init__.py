"""Subcommands about a job that runs, and what shows it to them."""
