"""Who owns what, who needs what, and who sends it: integers only, no torch, no MPI."""
