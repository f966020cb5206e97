"""The cells that each rank owns, needs and sends: integers only, no torch, no MPI."""
