"""From init() to shutdown(): ranks, and answers to questions about Horovod's build."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hvd_ext import variables
from hvd_ext.errors import UsageError
from hvd_ext.events import recorder
from hvd_ext.job.ending import LATE_AFTER_S, at_exit, meet_or_end_job, not_at_exit
from hvd_ext.job.topology import Topology, discover
from hvd_ext.named_waits import NamedOperations
from hvd_ext.torch.standalone.negotiation import Negotiator
from hvd_ext.torch.standalone.reductions import Reductions
from hvd_ext.torch.standalone.refused import needs_horovod, refuse_variables

if TYPE_CHECKING:
    from mpi4py import MPI


class NotInitializedError(UsageError, ValueError):
    """hvd.init() was not called; Horovod raises a ValueError for that."""


@dataclass(frozen=True)
class _Job:
    """The parts that run between init() and shutdown().

    Attributes:
        named: shows the waits to a recorder; None without one.
        unnamed: number of collectives of each kind that got no name from the program.
    """

    topology: Topology
    reductions: Reductions
    negotiator: Negotiator
    named: NamedOperations | None
    unnamed: dict[str, itertools.count[int]] = field(default_factory=dict)


class _GlobalProcessSet:
    """All ranks."""

    process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        return list(range(size()))

    def size(self) -> int:
        return size()

    def rank(self) -> int:
        return rank()

    def included(self) -> bool:
        return True


global_process_set = _GlobalProcessSet()
_job: _Job | None = None


def init(comm: MPI.Comm | Sequence[int] | None = None, process_sets: Any = None) -> None:
    """Start, as Horovod's init does; collective. MPI is also started, if it is not running.

    Args:
        comm: ranks that take part: all, or those of an mpi4py communicator.
        process_sets: refused, unless it is empty.

    Raises:
        NotInstalledError: only Horovod serves the request, or a request that a variable makes.
        StallError: ranks did not reach this in time; names them.
        HvdExtError: MPI runs without MPI_THREAD_MULTIPLE.
    """
    global _job
    refuse_variables(os.environ)
    if process_sets:
        raise needs_horovod("hvd.init(process_sets=...)")
    if _job is not None:
        return
    from mpi4py import MPI

    members: MPI.Comm = MPI.COMM_WORLD
    if isinstance(comm, MPI.Comm):
        members = comm
    elif comm and [*comm] != [*range(members.size)]:
        raise needs_horovod(f"hvd.init(comm={[*comm]}), of some ranks only,")
    timeout_s = variables.STALL_TIMEOUT_S.read()
    topology = discover(members, timeout_s)
    reductions = Reductions(topology)
    named = None
    if recorder() is not None and members.size == MPI.COMM_WORLD.size:
        named = NamedOperations("hvd_ext", members.rank, range(members.size))
    negotiator = Negotiator(topology, timeout_s, reductions.take_part)
    _job = _Job(topology, reductions, negotiator, named)
    at_exit(_at_exit)


def shutdown() -> None:
    """End; unfinished collectives fail. MPI runs until the program ends."""
    if _end(LATE_AFTER_S):
        not_at_exit(_at_exit)


def _end(within_s: float) -> bool:
    """End the thread, and free the communicators; returns whether nothing uses MPI any more."""
    global _job
    job, _job = _job, None
    if job is None:
        return True
    if not job.negotiator.close(within_s):
        return False
    job.topology.close(within_s)
    return True


def _at_exit(failed: bool) -> None:
    _end(0.0 if failed else LATE_AFTER_S)
    meet_or_end_job()


def job() -> _Job:
    """Return the parts that init() started.

    Raises:
        NotInitializedError: it was not called.
    """
    if _job is None:
        raise NotInitializedError("hvd is not initialized: call hvd.init() first")
    return _job


def is_initialized() -> bool:
    """Whether init() was called, and shutdown() was not."""
    return _job is not None


def size() -> int:
    """The number of ranks."""
    return job().topology.world.size


def rank() -> int:
    """This rank."""
    return job().topology.world.rank


def local_size() -> int:
    """The number of ranks on this node."""
    return job().topology.node.size


def local_rank() -> int:
    """This rank among those of its node."""
    return job().topology.node.rank


def cross_size() -> int:
    """Return the number of nodes that have this rank's local rank."""
    return job().topology.cross.size


def cross_rank() -> int:
    """Return the number of this rank's node among those."""
    return job().topology.cross.rank


def mpi_threads_supported() -> bool:
    """Whether MPI runs with MPI_THREAD_MULTIPLE: init() refuses less."""
    job()
    return True


def mpi_enabled() -> bool:
    """Whether collectives go by MPI: they do."""
    return True


def mpi_built() -> bool:
    """Whether MPI can be used: it can."""
    return True


def gloo_enabled() -> bool:
    """Whether collectives go by Gloo: they do not."""
    return False


def gloo_built() -> bool:
    """Whether Gloo can be used: it cannot."""
    return False


def nccl_built() -> int:
    """The version of NCCL that can be used: 0, for none."""
    return 0


def ddl_built() -> bool:
    """Whether IBM's DDL can be used: it cannot."""
    return False


def ccl_built() -> bool:
    """Whether oneCCL can be used: it cannot."""
    return False


def cuda_built() -> bool:
    """Whether collectives run on GPUs: tensors there pass through memory of the host."""
    return False


def rocm_built() -> bool:
    """Whether collectives take tensors of ROCm devices: they do not."""
    return False
