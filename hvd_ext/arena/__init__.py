"""Registered gradient memory, laid out in buckets and reduced in place."""
