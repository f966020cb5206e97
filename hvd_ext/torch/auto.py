"""Give an unmodified Horovod script the optimizer of hvd_ext."""

from __future__ import annotations

import horovod.torch
import horovod.torch.optimizer

from hvd_ext.torch import OVERRIDES, DistributedOptimizer


def install() -> None:
    """Replace what hvd_ext does otherwise in horovod.torch, for this process.

    To be called before the script imports it: `from horovod.torch import
    DistributedOptimizer` binds what exists at that moment.
    """
    vars(horovod.torch).update(OVERRIDES)
    horovod.torch.optimizer.DistributedOptimizer = DistributedOptimizer
