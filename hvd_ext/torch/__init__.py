"""`import hvd_ext.torch as hvd` in place of `import horovod.torch as hvd`.

Every public name of horovod.torch is here and is Horovod's own, except for
DistributedOptimizer, which reduces gradients in the arena; broadcast_optimizer_state, which
supports sharded optimizers; broadcast_parameters, which skips parameters that belong to one rank;
Compression, which has more formats; and init, join and shutdown, which also start and end the parts
that hvd_ext runs. plan_allreduce, empty, Slots and slot_seed are new. If Horovod is not installed,
hvd_ext.torch.standalone provides its names.
"""

from typing import Any

from hvd_ext.schedules import DiLoCo as DiLoCo
from hvd_ext.schedules import LocalSGD as LocalSGD
from hvd_ext.torch import horovods
from hvd_ext.torch.broadcasts import broadcast_optimizer_state as broadcast_optimizer_state
from hvd_ext.torch.broadcasts import broadcast_parameters as broadcast_parameters
from hvd_ext.torch.buffers import empty as empty
from hvd_ext.torch.compression import Compression as Compression
from hvd_ext.torch.job.lifecycle import init as init
from hvd_ext.torch.job.lifecycle import join as join
from hvd_ext.torch.job.lifecycle import shutdown as shutdown
from hvd_ext.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from hvd_ext.torch.planned import plan_allreduce as plan_allreduce
from hvd_ext.torch.reproducible.slots import Slots as Slots
from hvd_ext.torch.reproducible.slots import slot_seed as slot_seed

# Names that replace Horovod's own; `python -m hvd_ext` puts them into horovod.torch.
OVERRIDES = {
    its.__name__: its
    for its in (
        *(init, join, shutdown, DistributedOptimizer, broadcast_optimizer_state),
        *(Compression, LocalSGD, DiLoCo, broadcast_parameters),
    )
}

__all__: list[str] = sorted(
    {*horovods.__all__, *OVERRIDES, "empty", "plan_allreduce", "Slots", "slot_seed"}
)


def __getattr__(name: str) -> Any:
    """Get all other names, and modules that are in no list, from Horovod."""
    if name.startswith("_") or not hasattr(horovods, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(horovods, name)


def __dir__() -> list[str]:
    return __all__
