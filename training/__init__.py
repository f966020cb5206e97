"""Shared parts of the trainers: ranks that fail together, whole files, progress."""
