"""The one owner of abandoned requests, whose memory MPI may still use.

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

    They are not cancelled, so that a late message matches its own receive and not a later one.

    Args:
        requests: the requests; those of pickled objects hold their memory themselves.
        memory: memory that the other requests read or write.
    """
    kept = ([*requests], memory)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


@contextmanager
def abandoned_on_error(requests: Iterable[MPI.Request], *memory: object) -> Iterator[None]:
    """Abandon requests if the block that waits for them raises, Ctrl-C included.

    Args:
        requests: evaluated when the error comes.
        memory: see `abandon`.
    """
    try:
        yield
    except BaseException:
        abandon(requests, *memory)
        raise
