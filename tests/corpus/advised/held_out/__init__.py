"""Programs of `tests/corpus/held_out` as advised."""
