"""A process group without collectives: messages, and the order, limits and end of all it does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import Tensor

from hvd_ext.c10d.backend.tensors import check, check_written
from hvd_ext.c10d.backend.work import Together, Turns, Work
from hvd_ext.c10d.collectives import about
from hvd_ext.c10d.torch_internals import GroupBase, untraced
from hvd_ext.c10d.without_mpi import by_mpi
from hvd_ext.engine.compared import one_line
from hvd_ext.errors import HvdExtError, StallError, UsageError
from hvd_ext.events import region
from hvd_ext.job.stalls import StallReport, go_on
from hvd_ext.tensors import dtype_name
from hvd_ext.units import counted

if TYPE_CHECKING:
    from hvd_ext.c10d.backend.point_to_point import PointToPoint
    from hvd_ext.engine.carrier import Carrier
    from hvd_ext.job.topology import Topology

_ENDED = "the process group was destroyed: call init_process_group() or new_group() again"
_END_WITHIN_S = 5.0
M = TypeVar("M", bound=Callable[..., Any])


def collective(method: M) -> M:
    """A method that begins a collective: an error on this rank alone is reported to the others."""

    @untraced
    @functools.wraps(method)
    def begin(group: GroupCore, *arguments: Any, **options: Any) -> Any:
        try:
            return method(group, *arguments, **options)
        except Exception as error:
            group.refuse(error)
            raise

    return cast("M", begin)


class GroupCore(GroupBase):
    """The ranks of one process group, without collectives."""

    def __init__(
        self,
        topology: Topology,
        carrier: Carrier,
        messages: PointToPoint,
        timeout_s: float,
    ) -> None:
        """Keep the parts that the ranks have made together.

        Args:
            topology: the group's.
            carrier: carrier of its collectives.
            messages: carries its sends and receives.
            timeout_s: how long ranks are waited for.
        """
        world = topology.world
        super().__init__(world.rank, world.size, "hvd_ext", timeout_s)
        self._own, self._count, self._ranks = world.rank, world.size, topology.ranks
        self._carrier = carrier
        self._hosts = topology.hosts_by_rank
        self._turns = Turns(carrier.fail)
        self._messages = messages
        self._can_go_on = not by_mpi(topology)
        # The works that begin within a coalescing manager.
        self._together: list[Work] | None = None
        self._is_open = True

    def _begin(
        self,
        name: str,
        used: Sequence[Tensor],
        result: Sequence[Tensor],
        do: Callable[[], None],
        options: Any,
        *,
        writes: Iterable[Tensor] | None = None,
        operation: str = "",
        root: int = -1,
        may_be_sparse: bool = False,
    ) -> Work:
        """Run a collective in its turn.

        Args:
            name: its name in errors.
            used: the tensors that it reads or writes.
            result: the value of its future.
            do: runs it.
            options: torch's options.
            writes: the tensors that it writes; by default `result`.
            operation: torch's name of the reduction, if it is one.
            root: its rank in the group, if there is one.
            may_be_sparse: sparse tensors are served.

        Raises:
            UsageError: a tensor is not served, or the group has ended.
        """
        check(name, used, may_be_sparse=may_be_sparse)
        check_written(name, result if writes is None else writes)
        self._begun += 1
        work = Work(name, result)
        work.late = self._late
        limit_s = self._limit_s(getattr(options, "timeout", None))
        dtypes = [tensor.dtype for tensor in used]
        others = tuple(dtypes) if len(set(dtypes)) > 1 else ()
        what = about(name, dtypes[0] if dtypes else None, operation, root, others)

        def expected() -> None:
            self._carrier.expect(name, limit_s, what)
            do()

        waits = not getattr(options, "asyncOp", True)
        with region("exposed", kind="communication") if waits else nullcontext():
            self._turns.run(work, expected, waits=waits)
        if self._together is not None:
            self._together.append(work)
        return work

    def refuse(self, error: Exception) -> None:
        """Report to the other ranks, in its turn, that a collective was refused on this one."""
        if self._is_open:
            why = one_line(error)
            work = Work("a refused collective", [])
            self._turns.run(work, lambda: self._carrier.refuse(why), waits=False)

    def _limit_s(self, asked: timedelta | None) -> float:
        """Return how long a call may take; torch's options have a negative time by default."""
        limit_s = asked.total_seconds() if asked else 0.0
        return limit_s if limit_s > 0 else self.timeout_s

    def _late(self, name: str, waited_s: float) -> HvdExtError:
        missing = self._carrier.missing()
        if missing:
            report = StallReport(missing, name, waited_s, setting="the timeout of wait()")
            return report.error(self._hosts)
        return StallError(
            f"{name} did not end within {waited_s:g} s: look for late ranks, or wait longer"
        )

    @untraced
    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until every rank is here, and name those that are not.

        Args:
            timeout: a timedelta, or torch's options; by default the group's.
            wait_all_ranks: all missing ranks are always named.

        Raises:
            StallError: on every rank that arrived.
        """
        self._check_open("monitored_barrier()")
        limit = timeout if isinstance(timeout, timedelta) else getattr(timeout, "timeout", None)
        try:
            self._messages.meet(self._limit_s(limit))
        except StallError as error:
            if not error.ranks:
                raise
            # Gloo's words, for which programs may look; its ranks are those of the group.
            first = self._ranks.index(error.ranks[0])
            words = f"Rank {first} failed to pass monitoredBarrier"
            raise StallError(f"{words}: {error}", error.ranks) from None

    @untraced
    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work:
        """Begin to send a tensor to a rank of the group."""
        return self._message("send()", tensors, lambda t: self._messages.send(t, peer, tag))

    @untraced
    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work:
        """Begin to receive a tensor from a rank of the group."""
        return self._message("recv()", tensors, lambda t: self._messages.receive(t, peer, tag))

    @untraced
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Begin to receive a tensor from whichever rank sends one."""
        return self._message("recv()", tensors, lambda t: self._messages.receive(t, None, tag))

    def _message(self, name: str, tensors: list[Tensor], begin: Callable[[Tensor], Work]) -> Work:
        self._check_open(name)
        check(name, tensors)
        if len(tensors) != 1:
            raise UsageError(f"{name} of {len(tensors)} tensors: call it for each")
        message = begin(tensors[0])
        if self._together is not None:
            self._together.append(message)
        return message

    @untraced
    def start_coalescing(self) -> None:
        """Have `end_coalescing` answer for what begins from now on."""
        self._together = []

    @untraced
    def end_coalescing(self) -> Together:
        """The work that has begun since."""
        works, self._together = self._together or [], None
        return Together(works)

    def _check_open(self, name: str) -> None:
        if not self._is_open:
            raise UsageError(f"{name}: {_ENDED}")

    def _check_whole(self, name: str, whole: Tensor, part: Tensor) -> None:
        if whole.numel() != self._count * part.numel() or whole.dtype != part.dtype:
            raise UsageError(
                f"{name} with {counted(whole.numel(), 'element')} of {dtype_name(whole.dtype)} and "
                f"{part.numel()} of {dtype_name(part.dtype)}: "
                f"{counted(self._count, 'rank needs', 'ranks need')} "
                f"{self._count} times as many, of one dtype"
            )

    def _check_list(self, name: str, parts: Sequence[Tensor], own: Tensor) -> None:
        if len(parts) != self._count or any(part.dtype != own.dtype for part in parts):
            raise UsageError(
                f"{name} with a list of {counted(len(parts), 'tensor')}: give {self._count}, one "
                f"for each rank, of {dtype_name(own.dtype)}"
            )
        if parts[self._own].numel() != own.numel():
            raise UsageError(
                f"{name}: the list has {parts[self._own].numel()} elements for this rank, and its "
                f"tensor has {own.numel()}: make them the same"
            )

    def abort(self) -> None:
        """End the group without waiting for other ranks; unfinished operations fail."""
        self._carrier.abort()
        self.shutdown()

    def shutdown(self) -> None:
        """End the group after the operations that have begun.

        Without MPI, processes that miss a rank can make a smaller group afterwards.
        """
        if self._can_go_on:
            go_on()
        self.close()

    def close(self) -> None:
        """End it, on this rank."""
        if self._is_open:
            self._is_open = False
            finished = self._turns.close(_ENDED, _END_WITHIN_S)
            self._messages.close()
            self._carrier.close(finished)
