"""Recordings made from files of other tools."""
