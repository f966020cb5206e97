"""An allgather that names the ranks that did not reach it.

MPI's collectives cannot say which ranks they are waiting for. Here rank 0 reports that it has
arrived, every rank then sends it its payload, and rank 0, which then knows the missing ranks,
answers all. (torch.distributed.monitored_barrier does the same.)

A round ends in the same way on every rank, and later rounds stay in step: however a round ends,
rank 0 and each other rank exchange one message of each kind in it. A rank that gives up sends that
in place of its payload, and rank 0 also answers late ranks. An abandoned receive stays posted, and
takes the message that was meant for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from hvd_ext.job.abandoned import abandoned_on_error
from hvd_ext.job.stalls import STALL_TIMEOUT, Hosts, StallReport
from hvd_ext.job.waiting import message, until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpi4py import MPI

    from hvd_ext.errors import StallError
    from hvd_ext.job.departures import Departures

T = TypeVar("T")

_HERE_TAG = 24300
_TAG = 24301
_ANSWER_TAG = 24302
# Rank 0 has arrived, and answers when its own time is up.
_GRACE_S = 10.0
_ANSWER_BYTES = 1 << 22


def monitored_allgather(
    comm: MPI.Comm,
    payload: T,
    timeout_s: float,
    occasion: str,
    hosts: Hosts = (),
    ranks: Sequence[int] = (),
    setting: str = STALL_TIMEOUT,
    departures: Departures | None = None,
) -> list[T]:
    """Exchange a small payload among all ranks of `comm`; the list is in rank order.

    Args:
        comm: a communicator; three tags of it are used.
        payload: picklable, at most some KiB.
        timeout_s: how long rank 0 waits for the last rank, and the others for rank 0.
        occasion: what the ranks are about to do, for the error.
        hosts: host name of every rank, if known, for the error.
        ranks: the numbers in the world of the ranks of `comm`, for the error; by default those in
            `comm`.
        setting: source of `timeout_s`, for the error.
        departures: departures of `comm`; no rank that has left is waited for.

    Raises:
        StallError: on every rank, naming those that did not arrive in time, or have left.
    """
    if comm.size == 1:
        return [payload]

    def stalled(missing: Sequence[int], ended: bool) -> StallError:
        of_world = [ranks[rank] for rank in missing] if ranks else missing
        return StallReport(of_world, occasion, timeout_s, ended, setting).error(hosts)

    one_round = _Round[T](comm, timeout_s, stalled, departures.ranks if departures else set)
    return one_round.collect(payload) if comm.rank == 0 else one_round.take_part(payload)


class _Round(Generic[T]):
    def __init__(
        self,
        comm: MPI.Comm,
        timeout_s: float,
        stalled: Callable[[Sequence[int], bool], StallError],
        left: Callable[[], set[int]],
    ) -> None:
        self._comm, self._timeout_s = comm, timeout_s
        self._stalled, self._left = stalled, left
        self._requests: list[MPI.Request] = []

    def take_part(self, payload: T) -> list[T]:
        comm = self._comm
        here = comm.irecv(source=0, tag=_HERE_TAG)
        answer = comm.irecv(bytearray(_ANSWER_BYTES), source=0, tag=_ANSWER_TAG)
        self._requests += [here, answer]
        with abandoned_on_error(self._requests):
            at_fault = comm.rank
            try:
                arrived, _ = self._received(here, self._timeout_s)
                if not arrived:
                    at_fault = 0
                    raise self._stalled([0], 0 in self._left())
                self._send((None, payload), 0, _TAG)
            except BaseException:
                # Rank 0, which may be late, must not pass by itself.
                self._send((at_fault, None), 0, _TAG)
                raise
            arrived, received = self._received(answer, self._timeout_s + _GRACE_S)
            if not arrived:
                raise self._stalled([0], 0 in self._left())
            payloads, missing, ended = cast("tuple[list[T], list[int], bool]", received)
            if missing:
                raise self._stalled(missing, ended)
            self._requests[-1].wait()
        return list(payloads)

    def collect(self, payload: T) -> list[T]:
        others = range(1, self._comm.size)
        waiting = {rank: self._comm.irecv(source=rank, tag=_TAG) for rank in others}
        self._requests += waiting.values()
        payloads: dict[int, T] = {0: payload}
        missing, ended = [0], False
        with abandoned_on_error(self._requests):
            try:
                for rank in others:
                    self._send(True, rank, _HERE_TAG)
                missing, ended = self._collect(waiting, payloads)
            finally:
                found = [] if missing else [payloads[rank] for rank in range(self._comm.size)]
                for rank in others:
                    self._send((found, missing, ended), rank, _ANSWER_TAG)
            if missing:
                raise self._stalled(missing, ended)
            for request in self._requests[len(others) :]:
                request.wait()
        return found

    def _collect(
        self, waiting: dict[int, MPI.Request], payloads: dict[int, T]
    ) -> tuple[list[int], bool]:
        """Receive payloads; returns the ranks that are missing, were reported missing, or left."""
        at_fault, ended = set[int](), set[int]()

        def over() -> bool:
            left = self._left()
            for rank in list(waiting):
                done, received = waiting[rank].test()
                if done:
                    fault, payloads[rank] = cast("tuple[int | None, T]", received)
                    del waiting[rank]
                    if fault is not None:
                        at_fault.add(fault)
            ended.update(left & waiting.keys())
            return not waiting or bool(at_fault or ended)

        until(over, self._timeout_s)
        return sorted(ended or at_fault or waiting), bool(ended)

    def _send(self, value: object, rank: int, tag: int) -> None:
        self._requests.append(self._comm.isend(value, dest=rank, tag=tag))

    def _received(self, request: MPI.Request, within_s: float) -> tuple[bool, Any]:
        """Wait for rank 0's message; returns whether it came in time, and the message."""
        return message(request, within_s, has_left=lambda: 0 in self._left())
