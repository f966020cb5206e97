"""Throughput at larger sizes, projected from measured ones."""
