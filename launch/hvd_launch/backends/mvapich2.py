"""MVAPICH2 and MVAPICH2-GDR, started by mpirun_rsh or Hydra."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from hvd_ext.errors import UsageError
from hvd_ext.system.mpi_libraries import Version
from hvd_launch.backends import mpich, slurm
from hvd_launch.backends.base import MpiLibrary
from hvd_launch.backends.tuning import DEFAULT, Candidate, Candidates
from hvd_launch.job import Job
from hvd_launch.settings import Setting, wants_ipc, wants_registration_cache

_TUNING = "MVAPICH2 2.3.7, allreduce_tuning.h and allreduce_tuning.c"
# mpirun_rsh passes words to a remote shell: words that a shell would change are refused.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./^-]+")
# (inter, intra, two levels) by name.
_ALGORITHMS = {
    "recursive_doubling": ("1", None),
    "reduce_scatter_allgather": ("2", None),
    "reduce_scatter_and_allgather_calls": ("8", None),
    "ring": ("9", None),
    "socket_aware": ("11", None),
    "two_level_recursive_doubling_shared_memory": ("1", "5"),
    "two_level_recursive_doubling_point_to_point": ("1", "6"),
    "two_level_reduce_scatter_allgather_shared_memory": ("2", "5"),
    "two_level_reduce_scatter_allgather_point_to_point": ("2", "6"),
}


class Mvapich2(MpiLibrary):
    name = "mvapich2"
    assumed_version: Version = (2, 3)
    launchers = ("mpirun_rsh", "hydra", "srun")
    family = "mvapich2"
    rank_variables = ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK")
    local_size_variable = "MV2_COMM_WORLD_LOCAL_SIZE"
    srun_plugins = slurm.PMI2
    exported = "MV2_(?!COMM_WORLD_).*"
    version_command = ("mpiname", "-a")
    agent_variable = mpich.AGENT_VARIABLE
    asks_to_end = ("hydra", signal.SIGQUIT)
    abort_patterns = (
        re.compile(
            rb"MPI process \(rank: (?P<rank>\d+), pid: \d+\) exited with status (?P<code>\d+)"
        ),
        mpich.CALLED_ABORT,
    )
    registration_cache_off = ("MV2_USE_LAZY_MEM_UNREGISTER=0",)
    rotation_note = (
        "MVAPICH2 with MV2_CUDA_DYNAMIC_INIT=0 takes the device numbered local rank: "
        "after a rotation that is not the rank's own; use --visibility all"
    )
    guide = "MVAPICH2 2.3.7 user guide, MVAPICH2 parameters"
    gdr = False

    def arguments(self, launcher: str, job: Job, environ: Mapping[str, str]) -> list[str]:
        if launcher == "hydra":
            return mpich.hydra_arguments(job)
        return _rsh_arguments(job, environ)

    def settings(self) -> tuple[Setting, ...]:
        return (
            Setting(
                "MV2_ENABLE_AFFINITY",
                "0",
                "1: each rank is bound to a core",
                "Horovod asks for MPI_THREAD_MULTIPLE, and its threads need separate cores",
                self.guide,
            ),
            Setting(
                "MV2_USE_ALIGNED_ALLOC",
                "1",
                "0",
                "memory is allocated by several threads, for which this allocator is faster",
                self.guide,
            ),
            Setting(
                "MV2_USE_THREAD_WARNING",
                "0",
                "1: each job prints that threads were requested",
                "that message advises the variable above",
                self.guide,
            ),
        )

    def gpu_settings(self, preset: str, environ: Mapping[str, str]) -> tuple[Setting, ...]:
        """Return the settings; MV2_SUPPORT_DL only without LD_PRELOAD in the environment."""
        ipc, cache = wants_ipc(preset), wants_registration_cache(preset)
        settings = [
            Setting(
                "MV2_USE_CUDA",
                "1",
                "0: no GPU buffers, and none of the other CUDA variables counts",
                "MPI calls take GPU buffers",
                self.guide,
            )
        ]
        if self.gdr and "LD_PRELOAD" not in environ:
            settings.append(
                Setting(
                    "MV2_SUPPORT_DL",
                    "1",
                    "unset",
                    "made for Horovod and other frameworks; not together with LD_PRELOAD",
                    self.guide,
                )
            )
        settings += [
            Setting(
                "MV2_CUDA_IPC",
                "1" if ipc else "0",
                "1",
                "GPUs of a node copy from each other's memory"
                if ipc
                else "GPUs of a node exchange through the host",
                self.guide,
            ),
            Setting(
                "MV2_USE_LAZY_MEM_UNREGISTER",
                "1" if cache else "0",
                "1, but off where its malloc hooks fail",
                "the InfiniBand registration cache: memory stays registered between messages"
                if cache
                else "no registration cache: memory is registered again for each large message",
                self.guide,
            ),
        ]
        if ipc:
            settings.append(
                Setting(
                    "MV2_CUDA_ENABLE_IPC_CACHE",
                    "1",
                    "1",
                    "opens each IPC handle once: Horovod's fusion buffer keeps its address",
                    self.guide,
                )
            )
        return tuple(settings)

    def visibility(self, devices: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
        return "all", "MVAPICH2 compares device ordinals, which must differ"

    def candidates(self, nodes: int) -> Candidates:
        """Return candidates with one algorithm for all sizes.

        MVAPICH2 does read a list of sizes, but then its choice of two levels is undefined
        (MV2_internode_Allreduce_is_define), so there are no rules for it.
        """
        candidates = [Candidate(DEFAULT, ())]
        for name, (inter, intra) in _ALGORITHMS.items():
            settings = [
                Setting(
                    "MV2_INTER_ALLREDUCE_TUNING",
                    inter,
                    "by a table",
                    f"allreduce by {name}",
                    _TUNING,
                ),
                Setting(
                    "MV2_INTER_ALLREDUCE_TUNING_TWO_LEVEL",
                    "1" if intra else "0",
                    "by a table",
                    "first within the nodes" if intra else "all ranks alike",
                    _TUNING,
                ),
            ]
            if intra:
                settings.append(
                    Setting(
                        "MV2_INTRA_ALLREDUCE_TUNING", intra, "by a table", "within a node", _TUNING
                    )
                )
            if nodes > 1 or not intra:
                candidates.append(Candidate(name, tuple(settings)))
        return Candidates(tuple(candidates))


class Mvapich2Gdr(Mvapich2):
    name = "mvapich2-gdr"
    tested = False
    guide = "MVAPICH2-GDR 2.3.7 user guide"
    gdr = True


def _rsh_arguments(job: Job, environ: Mapping[str, str]) -> list[str]:
    """Return arguments of mpirun_rsh: the job's hosts one by one, variables as NAME=VALUE.

    Raises:
        UsageError: its remote shell would change a word.
    """
    places = [host.name for host in job.hosts for _ in range(host.slots)]
    # With more ranks than slots, the list of hosts starts over.
    hosts = [places[rank % len(places)] for rank in range(job.size)]
    variables = [f"{name}={environ[name]}" for name in job.exported]
    for word in (*variables, *job.command):
        if not _PLAIN.fullmatch(word):
            raise UsageError(
                f"mpirun_rsh passes {word!r} to a remote shell, which would change it: use "
                "--launcher hydra"
            )
    return ["-np", str(job.size), *hosts, *variables, *job.command]
