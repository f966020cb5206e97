"""Programs that the rules of the verdict were written with."""
