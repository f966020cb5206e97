"""Errors of unsupported operations: the same on every rank, before anything is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.overrides

from hvd_ext.errors import UsageError


@dataclass(frozen=True, slots=True)
class Layer:
    """The layer of a model that is running.

    Attributes:
        name: path of a submodule, or a name for the model itself.
        is_submodule: whether `gather_before` accepts the name.
        allow_gather: whether operations that cannot be split may run on the whole.
    """

    name: str = ""
    is_submodule: bool = True
    allow_gather: bool = True


class _Current(threading.local):
    layer = Layer()


_current = _Current()


class UnsupportedError(UsageError):
    """An operation that cannot be done exactly on a partitioned tensor.

    Its sentence depends only on global shapes, so that all ranks raise the same error. If the layer
    is known, the sentence names it, and a way to continue without changing the model's code.

    Args:
        sentence: the operation, the rule that it breaks, and what to do.
    """

    def __init__(self, sentence: str) -> None:
        name, is_submodule = _current.layer.name, _current.layer.is_submodule
        before = f"layer {name!r}: " if name else ""
        after = (
            f"; or have every rank compute this layer whole: gather_before=[{name!r}]"
            if name and is_submodule
            else ""
        )
        super().__init__(f"{before}{sentence}{after}")


def current_layer() -> Layer:
    """Return this thread's running layer; a Layer without a name outside of a converted model."""
    return _current.layer


@contextmanager
def layer(name: str, *, is_submodule: bool = True, allow_gather: bool = True) -> Iterator[None]:
    """Make refusals within the context, on this thread, name the layer `name`."""
    before, _current.layer = _current.layer, Layer(name, is_submodule, allow_gather)
    try:
        yield
    finally:
        _current.layer = before


def name_of(function: Any) -> str:
    """Return the public name of a function of torch."""
    name = torch.overrides.resolve_name(function) or getattr(function, "__qualname__", "")
    return str(name or function)
