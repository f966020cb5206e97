"""Shows a recorder which tensors a program waits for in Horovod, in `synchronize` and the like.

Horovod's background thread makes its MPI calls, and it continues while a tensor is missing on a
rank. When Python imports Horovod's library for PyTorch, wrappers replace the library's functions.
Nothing else of Horovod is imported here.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from hvd_ext.events import recorder
from hvd_ext.named_waits import NamedOperations

# The library, and its functions: one for each operation and type of tensor, and these.
_LIBRARY = "horovod.torch.mpi_lib_v2"
_PREFIX, _SUBMITS = "horovod_torch_", "_async_torch_"
_WAIT, _RESET = f"{_PREFIX}wait_and_clear", f"{_PREFIX}reset"
_JOIN, _BARRIER = f"{_PREFIX}join", f"{_PREFIX}barrier"
_NAMES = {"broadcast": "bcast"}


def watch_horovod() -> None:
    """Watch Horovod in this process, when it is imported; nothing without a recorder."""
    if recorder() is not None:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds one module as Python would, and wraps it once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _LIBRARY:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_watch(module: ModuleType) -> None:
                load(module)
                _Watched(module)

            spec.loader.exec_module = load_and_watch  # type: ignore[method-assign]
        return spec


class _Watched:
    """The functions that replace those of Horovod's library."""

    def __init__(self, library: Any) -> None:
        self._c: Any = ctypes.CDLL(library.__file__)
        self._sets: dict[int, NamedOperations] = {}
        # The tensor of each handle: its set, operation, name and key.
        self._under_way: dict[int, tuple[NamedOperations, str, str, int]] = {}
        for name in dir(library):
            if name.startswith(_PREFIX) and _SUBMITS in name:
                operation = name.removeprefix(_PREFIX).partition(_SUBMITS)[0]
                function = functools.partial(self._submit, getattr(library, name), operation)
                setattr(library, name, function)
        for name in (_JOIN, _BARRIER):
            operation = name.removeprefix(_PREFIX)
            function = functools.partial(self._meet, getattr(library, name), operation)
            setattr(library, name, function)
        setattr(library, _WAIT, functools.partial(self._wait, getattr(library, _WAIT)))
        setattr(library, _RESET, functools.partial(self._reset, getattr(library, _RESET)))

    def _submit(self, call: Callable[..., int], operation: str, *arguments: Any) -> int:
        handle = call(*arguments)
        place = next(i for i, one in enumerate(arguments) if isinstance(one, bytes | str))
        given = arguments[place]
        name = given.decode(errors="replace") if isinstance(given, bytes) else given
        # After the name: the set, and for reducescatter the kind of sum before it.
        number = arguments[place + 2] if "reducescatter" in operation else arguments[-1]
        self._note(handle, number, operation, name or f"noname.{handle}")
        return handle

    def _meet(self, call: Callable[..., int], operation: str, *arguments: Any) -> int:
        handle = call(*arguments)
        self._note(handle, arguments[-1] if operation == "barrier" else 0, operation, operation)
        return handle

    def _note(self, handle: int, number: int, operation: str, name: str) -> None:
        if number not in self._sets:
            self._sets[number] = self._set(number)
        operations = self._sets[number]
        key = operations.submit(f"{operation} {name}")
        self._under_way[handle] = operations, _NAMES.get(operation, operation), name, key

    def _wait(self, call: Callable[[int], None], handle: int) -> None:
        found = self._under_way.pop(handle, None)
        if found is None:
            call(handle)
            return
        operations, operation, name, key = found
        with operations.waiting(operation, name, key):
            call(handle)
        if operation == "join":
            operations.joined()

    def _reset(self, call: Callable[[], None]) -> None:
        call()
        self._sets.clear()  # a job that continues may have other ranks
        self._under_way.clear()

    def _set(self, number: int) -> NamedOperations:
        size = self._c.horovod_process_set_size(number) if number else self._c.horovod_size()
        rank = self._c.horovod_process_set_rank(number) if number else self._c.horovod_rank()
        ranks = (ctypes.c_int * size)(*range(size))
        if number:
            self._c.horovod_process_set_ranks(number, ranks)
        within = f" in process set {number}" if number else ""
        return NamedOperations("Horovod", rank, [*ranks], within)
