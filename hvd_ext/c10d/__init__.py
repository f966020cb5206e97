"""torch.distributed on hvd_ext's engine: DDP, and `init_method="mpi://"`.

Importing this registers `mpi://`; it starts nothing.
"""

import torch.distributed as dist

from hvd_ext.c10d.ddp import attach
from hvd_ext.c10d.exchange import Exchange
from hvd_ext.c10d.ranks import rendezvous

__all__ = ["Exchange", "attach"]

dist.register_rendezvous_handler("mpi", rendezvous)
