"""What tests and benchmarks share: ranks, emulated hosts, timed comparisons."""
