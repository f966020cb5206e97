"""Which rank owns, needs and sends which cells: integers only, no torch, no MPI."""
