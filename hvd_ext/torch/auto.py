"""Give an unmodified Horovod script the optimizer of hvd_ext."""

from __future__ import annotations

import os

from hvd_ext import schedules, settings
from hvd_ext.compression import formats
from hvd_ext.torch import OVERRIDES, horovods


def install() -> None:
    """Replace what hvd_ext does otherwise in horovod.torch, for this process.

    To be called before the script imports it: `from horovod.torch import
    DistributedOptimizer` binds what exists at that moment.

    Raises:
        UsageError: a variable of hvd_ext has no valid value. Every rank finds it here, before MPI
            starts: the first one to leave later would end MPI under the others.
    """
    settings.stall_timeout_s()
    settings.bucket_bytes()
    settings.device_arena()
    settings.sharded()
    settings.keep_memory(os.environ)
    formats.parse(settings.compression())
    schedules.parse(settings.sync())
    horovods.replace(OVERRIDES)
