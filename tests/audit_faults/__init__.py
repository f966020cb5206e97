"""Faults that are injected into trainings, for hvprof's audit to name."""
