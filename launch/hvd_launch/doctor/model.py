"""Observations of `hvd-launch doctor`, and its findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hvd_launch.backends.base import MpiLibrary
from hvd_launch.backends.libraries import LIBRARIES

OK, NOTE, WRONG = "ok", "note", "wrong"


@dataclass(frozen=True)
class Finding:
    """A finding.

    Attributes:
        status: OK, NOTE (information) or WRONG (a problem).
        evidence: the observation.
        impact: its consequence, if it is a problem.
        remedy: how to fix it, if it is a problem.
    """

    topic: str
    status: str
    evidence: str
    impact: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Snapshot:
    """Observations on a machine.

    Attributes:
        mpirun: its path, name (one of LIBRARIES) and version; or an error.
        mpi4py: its library (the version text) and path; or an error.
        horovod: version, library, mpi, gloo, nccl, cuda; or an error.
        builds: torch (its version), horovod_for (the torch that Horovod was built for), build
            (the command that builds Horovod for this torch); in an environment of `make env` also
            `checkout`, and `replaced`: the versions that it was made with and the present ones, by
            package.
        ranks: report of each rank of a job of `asked` ranks.
        asked: number of ranks that the job was to have.
        output: other output of that job, and a log if one was given.
        gpus: their names.
        peers: pairs of GPUs that have no access to each other.
        without_nvlink: pairs of GPUs with no NVLink between them; None if nvidia-smi did not say.
        opened: report of each rank of a job that opens GPU memory of its peers: gpu, and reason:
            why it could not, or "".
        given: report of each rank of a job that gives GPU memory to MPI: reason: as above, and us:
            times of a long message by carrier; None if there was no such job.
        peermem: whether a module is loaded that lets network cards read GPUs' memory.
        environ: this process's environment.
        cores: cores that this process may use.
        shm_bytes: size of /dev/shm.
        memlock_bytes: memory that a process may lock; None: unlimited.
        infiniband: names of InfiniBand devices.
        transports: UCX's transports; None if ucx_info is not installed.
        components: Open MPI's components, such as "pml ucx"; empty for other libraries.
        left: why hvd_ext leaves malloc as it is in this environment; "": it keeps freed memory.
        filling: times to fill memory that was freed just before, with malloc's defaults and with
            freed memory kept; or an error for each.
        yielding: steps/s next to a thread that waits in MPI, when it yields and by default
            (plain); empty unless there are as many ranks as cores, or if nothing is set for it.
        recorder: hvprof's recorder: its path, and `said`, the report about a recording of the job;
            or an error.
    """

    mpirun: Mapping[str, Any]
    mpi4py: Mapping[str, Any]
    horovod: Mapping[str, Any]
    ranks: tuple[Mapping[str, Any], ...]
    asked: int
    output: str
    gpus: tuple[str, ...]
    peers: tuple[tuple[int, int], ...]
    environ: Mapping[str, str]
    cores: int
    shm_bytes: int
    memlock_bytes: int | None
    infiniband: tuple[str, ...]
    transports: tuple[str, ...] | None
    components: tuple[str, ...] = field(default=())
    left: str = ""
    filling: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    yielding: Mapping[str, float] = field(default_factory=dict)
    builds: Mapping[str, Any] = field(default_factory=dict)
    recorder: Mapping[str, str] = field(default_factory=dict)
    without_nvlink: tuple[tuple[int, int], ...] | None = None
    opened: tuple[Mapping[str, Any], ...] = ()
    given: tuple[Mapping[str, Any], ...] | None = None
    peermem: bool = False

    @property
    def library(self) -> MpiLibrary | None:
        return LIBRARIES.get(str(self.mpirun.get("name", "")))
