"""Shared parts of tests and benchmarks: ranks, emulated hosts, timed comparisons."""
