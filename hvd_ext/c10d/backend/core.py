"""A process group without operations: their order, their limits, and their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hvd_ext.c10d.backend.reductions import name_of
from hvd_ext.c10d.backend.tensors import check
from hvd_ext.c10d.backend.work import Turns, Work
from hvd_ext.c10d.torch_internals import GroupBase
from hvd_ext.errors import HvdExtError, StallError, UsageError
from hvd_ext.events import region
from hvd_ext.job.stalls import StallReport

if TYPE_CHECKING:
    from hvd_ext.c10d.backend.carrier import Carrier, PointToPoint
    from hvd_ext.job.topology import Topology

_ENDED = "the process group was destroyed: call init_process_group() or new_group() again"
_END_WITHIN_S = 5.0


class GroupCore(GroupBase):
    """The ranks of one process group, without operations."""

    def __init__(
        self,
        topology: Topology,
        carrier: Carrier,
        messages: PointToPoint,
        timeout_s: float,
    ) -> None:
        """Take over what the ranks have made together.

        Args:
            topology: the group's.
            carrier: for its collectives.
            messages: for its sends and receives.
            timeout_s: how long ranks are waited for.
        """
        world = topology.world
        super().__init__(world.rank, world.size, "hvd_ext")
        self._own, self._count, self._ranks = world.rank, world.size, topology.ranks
        self._carrier, self._timeout_s = carrier, timeout_s
        self._hosts = topology.hosts_by_rank
        self._turns = Turns()
        self._messages = messages
        # What begins within a coalescing manager.
        self._together: list[Work] | None = None
        self._is_open = True

    def _begin(
        self,
        name: str,
        used: Iterable[Tensor],
        result: Sequence[Tensor],
        do: Callable[[], None],
        options: Any,
        *,
        may_be_sparse: bool = False,
    ) -> Work:
        check(name, used, may_be_sparse=may_be_sparse)
        self._begun += 1
        work = Work(name, result)
        work.late = self._late
        limit_s = self._limit_s(getattr(options, "timeout", None))

        def expected() -> None:
            self._carrier.expect(name, limit_s)
            do()

        waits = not getattr(options, "asyncOp", True)
        with region("exposed", kind="communication") if waits else nullcontext():
            self._turns.run(work, expected, waits=waits)
        if self._together is not None:
            self._together.append(work)
        return work

    def _limit_s(self, asked: timedelta | None) -> float:
        """How long a call may take; torch's options have a negative time where nothing is asked."""
        limit_s = asked.total_seconds() if asked else 0.0
        return limit_s if limit_s > 0 else self._timeout_s

    def _late(self, name: str, waited_s: float) -> HvdExtError:
        missing = self._carrier.missing()
        if missing:
            report = StallReport(missing, name, waited_s, setting="the timeout of wait()")
            return report.error(self._hosts)
        return StallError(
            f"{name} did not end within {waited_s:g} s: look for late ranks, or wait longer"
        )

    def _check_open(self, name: str) -> None:
        if not self._is_open:
            raise UsageError(f"{name}: {_ENDED}")

    def _check_whole(self, name: str, whole: Tensor, part: Tensor) -> None:
        if whole.numel() != self._count * part.numel() or whole.dtype != part.dtype:
            raise UsageError(
                f"{name} with {whole.numel()} elements of {name_of(whole.dtype)} and "
                f"{part.numel()} of {name_of(part.dtype)}: {self._count} ranks need "
                f"{self._count} times as many, of one dtype"
            )

    def _check_list(self, name: str, parts: Sequence[Tensor], own: Tensor) -> None:
        if len(parts) != self._count or any(part.dtype != own.dtype for part in parts):
            raise UsageError(
                f"{name} with a list of {len(parts)} tensors: give {self._count}, one for each "
                f"rank, of {name_of(own.dtype)}"
            )
        if parts[self._own].numel() != own.numel():
            raise UsageError(
                f"{name}: the list has {parts[self._own].numel()} elements for this rank, and its "
                f"tensor has {own.numel()}: make them the same"
            )

    def abort(self) -> None:
        """End the group without waiting for others; what is under way fails."""
        self._carrier.abort()
        self.close()

    def shutdown(self) -> None:
        """End the group after what has begun."""
        self.close()

    def close(self) -> None:
        """End it, on this rank."""
        if self._is_open:
            self._is_open = False
            finished = self._turns.close(_ENDED, _END_WITHIN_S)
            self._messages.close()
            self._carrier.close(finished)
