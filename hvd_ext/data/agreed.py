"""Actions that all ranks take together, or none: one rank's error is every rank's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hvd_ext.errors import HvdExtError

if TYPE_CHECKING:
    from mpi4py import MPI


@contextmanager
def agreed(comm: MPI.Comm | None) -> Iterator[None]:
    """Raise an error of any rank on all ranks; a collective.

    Args:
        comm: the ranks; None: only this one.

    Raises:
        HvdExtError: on every rank, the error of the lowest rank that raised one.
    """
    mine: HvdExtError | None = None
    try:
        yield
    except HvdExtError as error:
        mine = error
    errors = [error for error in (comm.allgather(mine) if comm else [mine]) if error]
    if errors:
        raise errors[0]


def require_threads(comm: MPI.Comm, what: str) -> None:
    """Check that a thread may call MPI while another one trains.

    Raises:
        HvdExtError: it may not; `what` needs that to exchange samples during training.
    """
    from mpi4py import MPI

    if comm.size > 1 and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise HvdExtError(
            f"MPI runs without MPI_THREAD_MULTIPLE, which {what} needs to exchange samples "
            "while a model trains: let hvd.init() start MPI, or ask for it in MPI_Init_thread"
        )
