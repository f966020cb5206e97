"""Samples that trainers read: which ones, which part of each, and from where."""
