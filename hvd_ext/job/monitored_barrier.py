"""A meeting that names who did not come.

MPI's collectives cannot say whom they wait for. Here every rank sends its payload
to rank 0, which knows by name whom it still lacks, and answers those that came.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar, cast

from hvd_ext.errors import StallError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py import MPI

T = TypeVar("T")

_TAG = 24301
_ANSWER_TAG = 24302
# What rank 0's answer may take longer than its own waiting: ranks do not start to
# wait at the same instant.
_GRACE_S = 10.0
_POLL_S = 0.0005
_ANSWER_BYTES = 1 << 22


def roll_call(
    comm: MPI.Comm,
    payload: T,
    timeout_s: float,
    occasion: str,
    hosts: Sequence[str] | None = None,
) -> list[T]:
    """Exchange a small payload among all ranks of `comm`; the list is in rank order.

    Args:
        comm: a communicator; two tags of it are used.
        payload: picklable, at most some KiB.
        timeout_s: how long rank 0 waits for the last one.
        occasion: what the ranks meet for, as it stands in the error.
        hosts: host name of every rank, if known, for the error.

    Raises:
        StallError: on every rank that came, naming those that did not.
    """
    if comm.size == 1:
        return [payload]
    if comm.rank == 0:
        return _collect(comm, payload, timeout_s, occasion, hosts)
    sent = comm.isend(payload, dest=0, tag=_TAG)
    answer = comm.irecv(bytearray(_ANSWER_BYTES), source=0, tag=_ANSWER_TAG)
    deadline = time.monotonic() + timeout_s + _GRACE_S
    while True:
        done, received = answer.test()
        if done:
            break
        if time.monotonic() > deadline:
            raise StallError(_sentence([0], hosts, timeout_s, occasion))
        time.sleep(_POLL_S)
    sent.wait()
    payloads, missing = cast("tuple[list[T], list[int]]", received)
    if missing:
        raise StallError(_sentence(missing, hosts, timeout_s, occasion))
    return list(payloads)


def _collect(
    comm: MPI.Comm,
    payload: T,
    timeout_s: float,
    occasion: str,
    hosts: Sequence[str] | None,
) -> list[T]:
    payloads: dict[int, T] = {0: payload}
    waiting = {rank: comm.irecv(source=rank, tag=_TAG) for rank in range(1, comm.size)}
    deadline = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline:
        for rank in list(waiting):
            done, received = waiting[rank].test()
            if done:
                payloads[rank] = cast("T", received)
                del waiting[rank]
        time.sleep(_POLL_S)
    missing = sorted(waiting)
    answer = ([payloads.get(rank) for rank in range(comm.size)], missing)
    for request in [
        comm.isend(answer, dest=rank, tag=_ANSWER_TAG) for rank in payloads if rank != 0
    ]:
        request.wait()
    if missing:
        raise StallError(_sentence(missing, hosts, timeout_s, occasion))
    return [payloads[rank] for rank in range(comm.size)]


def _sentence(
    missing: Sequence[int], hosts: Sequence[str] | None, timeout_s: float, occasion: str
) -> str:
    names = ", ".join(f"rank {r} ({hosts[r]})" if hosts else f"rank {r}" for r in missing)
    return (
        f"{names} did not come to {occasion} within {timeout_s:g} s: look for its last lines "
        "above; if it was only slow, raise HVD_EXT_STALL_TIMEOUT_S"
    )
