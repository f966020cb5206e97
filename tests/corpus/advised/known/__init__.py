"""Programs of `tests/corpus/known` as advised."""
