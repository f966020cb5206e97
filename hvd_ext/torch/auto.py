"""Give an unmodified Horovod script the optimizer of hvd_ext."""

from __future__ import annotations

import horovod.torch
import horovod.torch.optimizer

from hvd_ext.torch.background import init
from hvd_ext.torch.optimizer import DistributedOptimizer, join, shutdown


def install() -> None:
    """Replace what hvd_ext does otherwise in horovod.torch, for this process.

    To be called before the script imports it: `from horovod.torch import
    DistributedOptimizer` binds what is there at that moment.
    """
    horovod.torch.init = init
    horovod.torch.shutdown = shutdown
    horovod.torch.join = join
    horovod.torch.DistributedOptimizer = DistributedOptimizer
    horovod.torch.optimizer.DistributedOptimizer = DistributedOptimizer
