"""torch.distributed's backend "hvd_ext": a process group on the node's memory and on MPI."""
