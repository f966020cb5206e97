"""Recordings made from what other tools wrote."""
