"""All ranks of a job in one process, a thread each: no MPI, the same code paths.

Tests and `spatial.verify` use it. A message arrives as soon as it is sent, sums are
taken in the order of the ranks, and a rank's exception reaches the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from torch import Tensor

from hvd_ext.errors import StallError
from hvd_ext.spatial.exchange.communicator import Communicator, Receive, Send, joined

T = TypeVar("T")


class _Ended(BaseException):
    """Another rank has failed: this one stops silently."""


class _Mailboxes:
    def __init__(self, size: int) -> None:
        self._changed = threading.Condition()
        self._letters: dict[Hashable, Tensor] = {}
        self._awaited: set[Hashable] = set()
        self._working = size
        self._failed = False
        self._stuck = False

    def put(self, address: Hashable, tensor: Tensor) -> None:
        with self._changed:
            self._letters[address] = tensor
            self._awaited.discard(address)
            self._changed.notify_all()

    def take(self, address: Hashable, what: str) -> Tensor:
        with self._changed:
            if address not in self._letters:
                self._awaited.add(address)
                self._look()
            while address not in self._letters:
                if self._failed:
                    raise _Ended
                if self._stuck:
                    raise StallError(
                        f"{what} never arrived: all other ranks are waiting, or have ended"
                    )
                self._changed.wait()
            return self._letters.pop(address)

    def leave(self, failed: bool) -> None:
        with self._changed:
            self._working -= 1
            self._failed = self._failed or failed
            self._look()
            self._changed.notify_all()

    def left(self) -> int:
        """Return the messages that were not received."""
        return len(self._letters)

    def _look(self) -> None:
        """Detect that no rank is left that could send the messages that others wait for."""
        if self._awaited and len(self._awaited) == self._working:
            self._stuck = True
            self._changed.notify_all()


class EmulatedCommunicator:
    """A communicator among threads; `run` makes the first one."""

    def __init__(self, mailboxes: _Mailboxes, members: tuple[int, ...], me: int, name: str) -> None:
        self._mailboxes = mailboxes
        self._members = members
        self._name = name
        self._count = 0
        self.rank = members.index(me)
        self.size = len(members)

    def start(
        self, sends: Sequence[Send], receives: Sequence[Receive], like: Tensor
    ) -> Callable[[], None]:
        """Post the messages; the returned call receives."""
        self._count += 1
        count = self._count
        for peer, pieces in sends:
            self._mailboxes.put((self._name, self.rank, peer, count), joined(pieces))

        def wait() -> None:
            for peer, tensor in receives:
                what = f"the message of rank {peer} to rank {self.rank} (exchange {count})"
                letter = self._mailboxes.take((self._name, peer, self.rank, count), what)
                if letter.shape != tensor.shape or letter.dtype != tensor.dtype:
                    raise AssertionError(
                        f"{what} is {letter.shape} {letter.dtype}, "
                        f"expected {tensor.shape} {tensor.dtype}"
                    )
                tensor.detach().copy_(letter)

        return wait

    def allreduce(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks, in their order."""
        peers = [rank for rank in range(self.size) if rank != self.rank]
        mine = tensor.detach().clone().contiguous()
        theirs = {rank: mine.new_empty(mine.shape) for rank in peers}
        # Messages are 1-D.
        flat = [(rank, other.view(-1)) for rank, other in theirs.items()]
        self.start([(rank, [mine]) for rank in peers], flat, mine)()
        rows = theirs | {self.rank: mine}
        total = rows[0].clone()
        for rank in range(1, self.size):
            total += rows[rank]
        return total

    def group(self, members: Sequence[int]) -> Communicator:
        self._count += 1
        inside = tuple(self._members[rank] for rank in members)
        name = f"{self._name}/{self._count}:{inside}"
        return EmulatedCommunicator(self._mailboxes, inside, self._members[self.rank], name)


def run(size: int, function: Callable[[Communicator], T]) -> list[T]:
    """Run `function(communicator)` as `size` ranks, and return each rank's result.

    Tensors must be on the CPU: autograd runs devices' backward on one thread, where ranks
    would wait for each other.

    Args:
        size: number of ranks.
        function: a rank's whole work; makes its ProcessGrid over the communicator.

    Raises:
        Exception: the error of the first rank that fails; the others are ended.
        StallError: every rank waits for a message that will not come; names one.
    """
    mailboxes = _Mailboxes(size)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        failed = True
        try:
            comm = EmulatedCommunicator(mailboxes, tuple(range(size)), rank, "world")
            results[rank] = function(comm)
            failed = False
        except _Ended:
            pass
        except BaseException as error:
            # The caller raises it, so no error is lost.
            errors.append(error)
        finally:
            mailboxes.leave(failed)

    if size == 1:
        # Without a thread, so that debuggers, profilers and grad mode are the caller's.
        return [function(EmulatedCommunicator(mailboxes, (0,), 0, "world"))]
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    if mailboxes.left():
        raise AssertionError(f"{mailboxes.left()} messages were sent but not received")
    return [results[rank] for rank in range(size)]
