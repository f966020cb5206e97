"""What is not supported is refused, by the same sentence on every rank, before it starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.overrides

from hvd_ext.errors import UsageError

_current = threading.local()


class UnsupportedError(UsageError):
    """An operation that cannot be done exactly on a partitioned tensor.

    Its sentence is made from global shapes alone, so that all ranks raise it. Where the layer
    is known, it names it, and how to go on without changing the model's code.
    """

    def __init__(self, sentence: str) -> None:
        name, is_submodule = getattr(_current, "layer", (None, False))
        before = f"layer {name!r}: " if name else ""
        after = (
            f"; or have every rank compute this layer whole: gather_before=[{name!r}]"
            if is_submodule
            else ""
        )
        super().__init__(f"{before}{sentence}{after}")


@contextmanager
def layer(name: str, *, is_submodule: bool = True) -> Iterator[None]:
    """Have what is refused meanwhile, on this thread, say that it was in layer `name`.

    Args:
        name: a submodule's, by its path; or what stands for the model itself.
        is_submodule: whether `gather_before` takes it.
    """
    before = getattr(_current, "layer", (None, False))
    _current.layer = (name, is_submodule)
    try:
        yield
    finally:
        _current.layer = before


def name_of(function: Any) -> str:
    """The public name of a function of torch."""
    name = torch.overrides.resolve_name(function) or getattr(function, "__qualname__", "")
    return str(name or function)
