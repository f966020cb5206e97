"""The one owner of requests that are given up: MPI may still use their memory.

A receive that is dropped stays posted, and a late message is then written into memory that
is used for something else. Such requests and their memory are therefore kept until the
process ends, MPI_Finalize included, which comes after Python has freed its modules.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


def abandon(requests: Iterable[MPI.Request], *memory: object) -> None:
    """Give up waiting for requests.

    They are not cancelled: a late message must meet its own receive, not a later one's.

    Args:
        requests: those of pickled objects have their memory in themselves.
        memory: what the others read or write.
    """
    kept = ([*requests], memory)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


@contextmanager
def abandoned_on_error(requests: Iterable[MPI.Request], *memory: object) -> Iterator[None]:
    """Abandon requests if the block that waits for them raises, Ctrl-C included.

    Args:
        requests: read when the error comes.
        memory: as `abandon` takes it.
    """
    try:
        yield
    except BaseException:
        abandon(requests, *memory)
        raise
