"""Recordings: what one holds, how it begins and ends, and reading it."""
