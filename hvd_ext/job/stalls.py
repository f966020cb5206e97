"""Waiting for the ranks of a node: who is late is named, and in the end given up on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from hvd_ext.errors import StallError
from hvd_ext.job.watchdog import end_job, stall_sentence
from hvd_ext.settings import WARN_AFTER_S

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology

log = logging.getLogger("hvd_ext")
T = TypeVar("T")
# Between two slices of a wait Python sees to Ctrl-C.
_SLICE_S = 0.5


class Patience:
    """Waits for the node's ranks, names those that are late, and gives up in the end."""

    def __init__(self, topology: Topology, limit_s: float) -> None:
        """Remember whom to wait for, and how long."""
        self._topology = topology
        self._limit_s = limit_s
        # Asked for now: a thread may wait here still when MPI has ended.
        self._of_node = topology.node_world_ranks()

    def __call__(self, wait: Callable[[float], T]) -> T:
        """Call `wait` with a time limit until it ends or the time allowed is over.

        Raises:
            StallError: ranks did not come in time, or ended; the job ends soon.
        """
        warn_at_s = WARN_AFTER_S
        start_s = time.monotonic()
        while True:
            try:
                return wait(_SLICE_S)
            except ProcessLookupError as ended:
                raise _stall(self._sentence_ended(ended.args[0])) from None
            except TimeoutError as late:
                waited_s = time.monotonic() - start_s
                ranks = self._world_ranks(late.args[0])
                if waited_s >= self._limit_s:
                    sentence = stall_sentence(self._topology, ranks, self._limit_s)
                    raise _stall(sentence) from None
                if waited_s >= warn_at_s:
                    names = ", ".join(self._topology.name(rank) for rank in ranks)
                    log.warning("hvd_ext: waiting for %s since %.0f s", names, waited_s)
                    warn_at_s += WARN_AFTER_S

    def _sentence_ended(self, local_ranks: list[int]) -> str:
        names = ", ".join(self._topology.name(r) for r in self._world_ranks(local_ranks))
        return f"{names} ended before a gradient exchange that other ranks wait in"

    def _world_ranks(self, local_ranks: list[int]) -> list[int]:
        return [self._of_node[rank] for rank in local_ranks]


def _stall(sentence: str) -> StallError:
    error = StallError(sentence)
    end_job(error)
    return error
