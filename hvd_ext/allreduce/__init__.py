"""Allreduce: several algorithms, a table that chooses among them, and calls that repeat.

Names are imported when they are used: the table is also read without MPI and numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_ext.allreduce.algorithms import ALGORITHMS
    from hvd_ext.allreduce.buffers import empty
    from hvd_ext.allreduce.persistent import PersistentAllreduce, allreduce
    from hvd_ext.allreduce.table import Table, load

__all__ = ["ALGORITHMS", "PersistentAllreduce", "Table", "allreduce", "empty", "load"]

_MODULES = {
    "ALGORITHMS": "algorithms",
    "PersistentAllreduce": "persistent",
    "Table": "table",
    "allreduce": "persistent",
    "empty": "buffers",
    "load": "table",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
