"""How fast are the collectives, beside Gloo through torch.distributed and MPI's own?"""
