"""Fingerprints of each step of a training, by which two runs are compared."""
