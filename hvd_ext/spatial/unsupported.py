"""What is not supported is refused, by the same sentence on every rank, before it starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hvd_ext.errors import UsageError

_current = threading.local()


class UnsupportedError(UsageError):
    """An operation that cannot be done exactly on a partitioned tensor.

    Its sentence is made from global shapes alone, so that all ranks raise it, and
    names the layer where that is known.
    """

    def __init__(self, sentence: str) -> None:
        name = getattr(_current, "layer", None)
        super().__init__(f"layer {name!r}: {sentence}" if name else sentence)


@contextmanager
def layer(name: str) -> Iterator[None]:
    """Have what is refused meanwhile, on this thread, say that it was in layer `name`."""
    before = getattr(_current, "layer", None)
    _current.layer = name
    try:
        yield
    finally:
        _current.layer = before
