"""`import hvd_ext.torch as hvd` in place of `import horovod.torch as hvd`.

Every public name of horovod.torch is here and is Horovod's own, but for
DistributedOptimizer, which reduces gradients in the arena, init, which notes which
thread is Horovod's, join, which refuses what the arena does not serve, and shutdown,
which ends hvd_ext's first. plan_allreduce is new.
"""

from typing import TYPE_CHECKING, Any

from horovod.torch import *  # noqa: F403
from horovod.torch import elastic as elastic

from hvd_ext.torch.background import init as init
from hvd_ext.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from hvd_ext.torch.optimizer import join as join
from hvd_ext.torch.optimizer import shutdown as shutdown
from hvd_ext.torch.planned import plan_allreduce as plan_allreduce

if TYPE_CHECKING:  # Horovod has no types

    def __getattr__(name: str) -> Any: ...
