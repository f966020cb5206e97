"""Horovod as it is without hvd_ext: the only module that imports it.

Its names are bound here when hvd_ext.torch is imported, so that they stay Horovod's own after
`replace` has put hvd_ext's into Horovod's modules.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hvd_ext.errors import NotInstalledError

try:
    import horovod.torch as _horovod
    from horovod.torch import *  # noqa: F403
    from horovod.torch import elastic as elastic
    from horovod.torch import functions as _functions
    from horovod.torch import mpi_lib_v2 as _library
    from horovod.torch import optimizer as _optimizer
except ModuleNotFoundError as missing:
    package = (missing.name or "").partition(".")[0]
    if package not in ("horovod", "torch"):
        raise
    raise NotInstalledError(
        f"hvd_ext.torch needs {package}, which is not installed for {sys.executable}: "
        "README.md has the commands under Install"
    ) from None

# The public names of Horovod's interface.
__all__ = [
    name
    for name, value in vars(_horovod).items()
    if not name.startswith("_") and (name == "elastic" or not inspect.ismodule(value))
]

# Horovod recognises a wrapped optimizer by the module of its class.
WRAPPED_MODULE: str = _optimizer.DistributedOptimizer.__module__
LIBRARY_PATH: str = _library.__file__


def broadcast_state(
    optimizer: Any,
    root_rank: int,
    model: Any,
    broadcast_tensors: Callable[[list[tuple[str, Any]], int], None],
) -> None:
    """Horovod's broadcast_optimizer_state, with another broadcast for the tensors of the state."""
    before = _functions.broadcast_parameters
    _functions.broadcast_parameters = broadcast_tensors
    try:
        _functions.broadcast_optimizer_state(optimizer, root_rank, model)
    finally:
        _functions.broadcast_parameters = before


def replace(overrides: Mapping[str, Any]) -> None:
    """Put hvd_ext's functions and classes into Horovod's modules, for this process."""
    vars(_horovod).update(overrides)
    ours = overrides["DistributedOptimizer"]
    # Horovod compares a wrapped optimizer's module with that of this function.
    ours.__module__ = WRAPPED_MODULE
    _optimizer.DistributedOptimizer = ours


if TYPE_CHECKING:  # Horovod has no types

    def __getattr__(name: str) -> Any: ...
