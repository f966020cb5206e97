"""Lets torch.cuda.set_device(hvd.local_rank()) reach the rank's own GPU, whatever its ordinal.

Horovod's documentation asks scripts for this call. If a rank's own GPU is device 0 of those it
sees, the call would fail or select a peer's GPU. `hvd-launch exec` puts this folder on PYTHONPATH,
so that Python imports this file at its start; the file steps aside for the sitecustomize that it
hides.
"""

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_VARIABLE = "HVD_LAUNCH_OWN_DEVICE"
_HERE = str(Path(__file__).resolve().parent)


def own_device(wanted: object, local_rank: int, own: int, count: int) -> object:
    """Return the device that a call of set_device means.

    Args:
        wanted: the script's argument: an ordinal, "cuda:1", or a torch.device.
        local_rank: local rank of this rank.
        own: ordinal of its GPU among those it sees.
        count: number of GPUs that it sees; if ranks share GPUs, scripts use local_rank % count.
    """
    if isinstance(wanted, str):
        index: object = wanted.removeprefix("cuda:")
    else:
        index = getattr(wanted, "index", wanted)
    meant = {str(rank) for rank in {local_rank, local_rank % max(1, count)} - {own}}
    return own if isinstance(index, (int, str)) and str(index) in meant else wanted


def wrap(cuda: ModuleType, local_rank: int, own: int, strategy: str) -> None:
    """Make cuda.set_device(local_rank) mean the rank's own GPU, and say so once."""
    original = cuda.set_device
    said: list[bool] = []

    def set_device(device: object) -> None:
        mine = own_device(device, local_rank, own, cuda.device_count())
        if mine is not device and not said:
            said.append(True)
            print(
                f"hvd-launch: torch.cuda.set_device({device}) selects the rank's own GPU, "
                f"which is cuda:{own} here (visibility {strategy}); write "
                f'device="cuda", not "cuda:{device}", elsewhere',
                file=sys.stderr,
                flush=True,
            )
        original(mine)

    set_device.__doc__ = original.__doc__
    cuda.set_device = set_device  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps set_device as soon as torch.cuda has been imported."""

    def __init__(self, local_rank: int, own: int, strategy: str) -> None:
        self._given = (local_rank, own, strategy)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find torch.cuda as Python would, with a loader that wraps it afterwards."""
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, given = spec.loader, self._given
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                wrap(module, *given)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _start() -> None:
    given = os.environ.get(_VARIABLE, "").split(":")
    if len(given) == 3 and given[0].isdecimal() and given[1].isdecimal():
        sys.meta_path.insert(0, _Finder(int(given[0]), int(given[1]), given[2]))


def _step_aside() -> None:
    """Import the sitecustomize that Python would have found without this one."""
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _start()
    _step_aside()
