"""`--exchange ddp+hvd_ext`: DDP whose gradients hvd_ext exchanges."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn

import hvd_ext.c10d
from hvd_ext.compression.formats import FORMATS
from training.exchanges.ddp import *  # noqa: F403
from training.exchanges.ddp import Replica, require_alike

Compression = SimpleNamespace(**dict.fromkeys((*FORMATS, "powersgd")))


def replicate(  # type: ignore[no-redef]
    model: nn.Module, compression: str | None, passes: int
) -> Replica:
    """Wrap the model in DDP with hvd_ext's hook. A collective.

    Args:
        model: model with rank 0's state.
        compression: see `hvd_ext.c10d.attach`.
        passes: backward passes in each step.

    Raises:
        UsageError: the model or the format is not supported.
    """
    require_alike(model)
    replica = Replica(model, passes)
    hvd_ext.c10d.attach(replica, compression)
    return replica
