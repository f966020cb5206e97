"""An allgather that names the ranks that did not reach it.

MPI's collectives cannot say which ranks they are waiting for. Here every rank sends its
payload to rank 0, which knows who is missing and answers the others.
(torch.distributed.monitored_barrier does the same.)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar, cast

from hvd_ext.job.abandoned import abandoned_on_error
from hvd_ext.job.stalls import Hosts, StallReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpi4py import MPI

    from hvd_ext.errors import StallError

T = TypeVar("T")

_TAG = 24301
_ANSWER_TAG = 24302
# Added to the wait for rank 0's answer: ranks do not start to wait at the same instant.
_GRACE_S = 10.0
_POLL_S = 0.0005
_ANSWER_BYTES = 1 << 22


def monitored_allgather(
    comm: MPI.Comm,
    payload: T,
    timeout_s: float,
    occasion: str,
    hosts: Hosts = (),
    ranks: Sequence[int] = (),
    setting: str = "HVD_EXT_STALL_TIMEOUT_S",
) -> list[T]:
    """Exchange a small payload among all ranks of `comm`; the list is in rank order.

    Args:
        comm: a communicator; two tags of it are used.
        payload: picklable, at most some KiB.
        timeout_s: how long rank 0 waits for the last rank.
        occasion: what the ranks are about to do, as it stands in the error.
        hosts: host name of every rank, if known, for the error.
        ranks: the numbers in the world of the ranks of `comm`, for the error; its own by default.
        setting: of `timeout_s`, for the error.

    Raises:
        StallError: on every rank that arrived, naming those that did not.
    """
    if comm.size == 1:
        return [payload]

    def stalled(missing: Sequence[int]) -> StallError:
        of_world = [ranks[rank] for rank in missing] if ranks else missing
        return StallReport(of_world, occasion, timeout_s, setting=setting).error(hosts)

    if comm.rank == 0:
        return _collect(comm, payload, timeout_s, stalled)
    sent = comm.isend(payload, dest=0, tag=_TAG)
    answer = comm.irecv(bytearray(_ANSWER_BYTES), source=0, tag=_ANSWER_TAG)
    deadline = time.monotonic() + timeout_s + _GRACE_S
    with abandoned_on_error([sent, answer]):
        while True:
            done, received = answer.test()
            if done:
                break
            if time.monotonic() > deadline:
                raise stalled([0])
            time.sleep(_POLL_S)
        sent.wait()
    payloads, missing = cast("tuple[list[T], list[int]]", received)
    if missing:
        raise stalled(missing)
    return list(payloads)


def _collect(
    comm: MPI.Comm,
    payload: T,
    timeout_s: float,
    stalled: Callable[[Sequence[int]], StallError],
) -> list[T]:
    payloads: dict[int, T] = {0: payload}
    waiting = {rank: comm.irecv(source=rank, tag=_TAG) for rank in range(1, comm.size)}
    deadline = time.monotonic() + timeout_s
    requests = [*waiting.values()]
    with abandoned_on_error(requests):
        while waiting and time.monotonic() < deadline:
            for rank in list(waiting):
                done, received = waiting[rank].test()
                if done:
                    payloads[rank] = cast("T", received)
                    del waiting[rank]
            time.sleep(_POLL_S)
        missing = sorted(waiting)
        answer = ([payloads.get(rank) for rank in range(comm.size)], missing)
        sent = [comm.isend(answer, dest=rank, tag=_ANSWER_TAG) for rank in payloads if rank != 0]
        requests += sent
        for request in sent:
            request.wait()
        if missing:
            raise stalled(missing)
    return [payloads[rank] for rank in range(comm.size)]
