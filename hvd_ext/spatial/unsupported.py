"""Unsupported operations raise the same error on every rank, before anything is sent."""

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
    """Where a model is.

    Attributes:
        name: a submodule's, by its path; or what stands for the model itself.
        is_submodule: whether `gather_before` takes it.
        allow_gather: whether what cannot be split may be done on the whole.
    """

    name: str = ""
    is_submodule: bool = True
    allow_gather: bool = True


class _Current(threading.local):
    layer = Layer()


_current = _Current()


class UnsupportedError(UsageError):
    """An operation that cannot be done exactly on a partitioned tensor.

    Its sentence is made from global shapes alone, so that all ranks raise it. Where the layer
    is known, it names it, and a way to continue without changing the model's code.

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
    """Where this thread is; a Layer without a name outside a converted model."""
    return _current.layer


@contextmanager
def layer(name: str, *, is_submodule: bool = True, allow_gather: bool = True) -> Iterator[None]:
    """Have what is refused meanwhile, on this thread, say that it was in layer `name`."""
    before, _current.layer = _current.layer, Layer(name, is_submodule, allow_gather)
    try:
        yield
    finally:
        _current.layer = before


def name_of(function: Any) -> str:
    """The public name of a function of torch."""
    name = torch.overrides.resolve_name(function) or getattr(function, "__qualname__", "")
    return str(name or function)
