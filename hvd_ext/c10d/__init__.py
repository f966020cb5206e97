"""torch.distributed on hvd_ext's engine: DDP, FSDP2, a backend, and `init_method="mpi://"`.

Importing this registers `mpi://` and the backend "hvd_ext"; it starts nothing.
"""

from torch.distributed.rendezvous import register_rendezvous_handler

from hvd_ext.c10d.auto import install
from hvd_ext.c10d.backend.registration import register
from hvd_ext.c10d.ddp import attach
from hvd_ext.c10d.exchange import Exchange
from hvd_ext.c10d.ranks import rendezvous

__all__ = ["Exchange", "attach", "install", "register"]

register_rendezvous_handler("mpi", rendezvous)
register()
