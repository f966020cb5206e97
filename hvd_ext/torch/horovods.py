"""Horovod without hvd_ext's changes, or its interface if Horovod is not installed.

This is the only module that imports Horovod. Its names are bound here when hvd_ext.torch is
imported, so that they stay Horovod's own after `replace` has put hvd_ext's into Horovod's modules.
If Horovod is not installed, `hvd_ext.torch.standalone` has the same names.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hvd_ext.errors import NotInstalledError

if importlib.util.find_spec("torch") is None:
    raise NotInstalledError(
        f"hvd_ext.torch needs torch, which is not installed for {sys.executable}: pip install torch"
    )
try:
    import horovod.torch as _horovod
    from horovod.torch import *  # noqa: F403
    from horovod.torch import elastic as elastic
    from horovod.torch import mpi_lib_v2 as _library
    from horovod.torch import optimizer as _optimizer
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "horovod":
        raise
    INSTALLED = False
else:
    INSTALLED = True

if INSTALLED:
    # The public names of Horovod's interface.
    __all__ = [
        name
        for name, value in vars(_horovod).items()
        if not name.startswith("_") and (name == "elastic" or not inspect.ismodule(value))
    ]
    # Horovod recognizes a wrapped optimizer by the module of its class.
    WRAPPED_MODULE: str = _optimizer.DistributedOptimizer.__module__
    LIBRARY_PATH: str = _library.__file__
else:
    # By name: mypy takes these names for Horovod's, which have no types.
    _standalone = importlib.import_module("hvd_ext.torch.standalone")
    _objects = importlib.import_module("hvd_ext.torch.standalone.objects")

    __all__ = list(_standalone.__all__)
    globals().update({name: getattr(_standalone, name) for name in __all__})
    WRAPPED_MODULE = _objects.WRAPPED_MODULE
    _mpi4py = importlib.util.find_spec("mpi4py.MPI")  # importing it would start MPI
    LIBRARY_PATH = str(_mpi4py.origin if _mpi4py else None)


def replace(overrides: Mapping[str, Any]) -> None:
    """Put hvd_ext's functions and classes into Horovod's modules, for this process.

    If Horovod is not installed, `import horovod.torch` finds hvd_ext.torch from now on.
    """
    if not INSTALLED:
        package: Any = ModuleType("horovod")
        package.torch = sys.modules["hvd_ext.torch"]
        vars(package.torch).update(overrides)
        sys.modules.update({"horovod": package, "horovod.torch": package.torch})
        return
    vars(_horovod).update(overrides)
    ours = overrides["DistributedOptimizer"]
    # Horovod compares a wrapped optimizer's module with that of this function.
    ours.__module__ = WRAPPED_MODULE
    _optimizer.DistributedOptimizer = ours


if TYPE_CHECKING:  # Horovod has no types

    def __getattr__(name: str) -> Any: ...
