"""Intel MPI, started by its Hydra."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path

from hvd_ext.system.mpi_libraries import THREAD_YIELD, Version
from hvd_launch.backends import mpich, slurm, ucx
from hvd_launch.backends.base import YIELDS, MpiLibrary
from hvd_launch.backends.tuning import (
    DEFAULT,
    Candidate,
    Candidates,
    NativeRules,
    RuleRequest,
    Rules,
)
from hvd_launch.job import Job, even_slots
from hvd_launch.settings import Setting, wants_ipc

_REFERENCE = "Intel MPI Library developer reference for Linux, {}"
_GPU = _REFERENCE.format("GPU support")
_ADJUST = "Intel MPI Library Developer Reference, I_MPI_ADJUST Family"
# Variables of Slurm, PBS, LSF, LoadLeveler, Grid Engine, NQS, Yarn and Netbatch.
_READ_BY_MPIRUN = (
    *("SLURM_JOBID", "PBS_ENVIRONMENT", "PBS_NODEFILE", "LSB_JOBID", "LOADL_HOSTFILE"),
    *("PE_HOSTFILE", "QSUB_REQID", "I_MPI_YARN", "NB_PARALLEL_JOB_HOSTS"),
)
_ALGORITHMS = {
    "recursive_doubling": "1",
    "rabenseifner": "2",
    "reduce_bcast": "3",
    "topology_aware_reduce_bcast": "4",
    "binomial_gather_scatter": "5",
    "topology_aware_binomial_gather_scatter": "6",
    "shumilin_ring": "7",
    "ring": "8",
    "knomial": "9",
}


class IntelMpi(MpiLibrary):
    name = "intelmpi"
    assumed_version = (2021, 11)
    launchers = ("hydra", "srun")
    family = "intelmpi"
    rank_variables = mpich.RANK_VARIABLES
    local_size_variable = mpich.LOCAL_SIZE_VARIABLE
    srun_plugins = slurm.PMI2
    exported = "I_MPI_(?!HYDRA|INFO).*"
    agent_variable = "I_MPI_HYDRA_BOOTSTRAP_EXEC"
    asks_to_end = ("hydra", signal.SIGTSTP)
    mixes_packets = True
    registration_cache_off = ("FI_MR_CACHE_MONITOR=disabled",)
    yields = Setting(
        *THREAD_YIELD,
        "-1: it spins",
        YIELDS,
        "impi_info -v I_MPI_THREAD_YIELD; MPI_T's MPIR_CVAR_IMPI_THREAD_YIELD",
    )
    horovodrun_note = ""

    def recognise_mpirun(self, text: str) -> Version | None:
        match = re.match(
            r"Intel\(R\) MPI Library for Linux\*? OS, Version (\d+)(?:\.(\d+))?", text.strip()
        )
        return tuple(int(part) for part in match.groups() if part) if match else None

    def program(self, mpirun: str, environ: Mapping[str, str]) -> str:
        """Use mpiexec: mpirun is a script that passes no signals on and leaves ranks behind.

        mpirun is needed only if it must read a scheduler's variables or the site's settings.
        """
        beside = Path(mpirun).with_name("mpiexec.hydra")
        sourced = "I_MPI_ROOT" not in environ and any(
            (beside.parent / name).exists()
            for name in ("mpivars.sh", "../env/vars.sh", "../setvars.sh")
        )
        needed = sourced or any(name in environ for name in _READ_BY_MPIRUN)
        return str(beside) if beside.exists() and not needed else mpirun

    def started_here(self, environ: Mapping[str, str]) -> bool:
        # MPICH's ranks have the same variables; I_MPI_ROOT depends only on the installation.
        return "I_MPI_HYDRA_UUID" in environ and super().started_here(environ)

    def arguments(self, launcher: str, job: Job, environ: Mapping[str, str]) -> list[str]:
        """Return its arguments; its -hosts takes hosts without their slots."""
        del launcher, environ
        where: list[str] = []
        if job.hosts:
            slots = even_slots(job, "Intel's mpirun")
            where = ["-ppn", str(slots), "-hosts", ",".join(host.name for host in job.hosts)]
        return ["-np", str(job.size), *where, "-genvall", *job.command]

    def settings(self) -> tuple[Setting, ...]:
        return (
            Setting(
                "I_MPI_PIN",
                "0",
                "1: each rank is bound to its share of the cores",
                "a rank of a training framework has threads to spread",
                _REFERENCE.format("process pinning"),
            ),
            *super().settings(),
        )

    def gpu_settings(self, preset: str, environ: Mapping[str, str]) -> tuple[Setting, ...]:
        del environ
        ipc = wants_ipc(preset)
        return (
            Setting(
                "I_MPI_OFFLOAD",
                "1",
                "0: no GPU buffers",
                "MPI calls take GPU buffers",
                _GPU,
            ),
            Setting(
                "I_MPI_OFFLOAD_MODE",
                "cuda",
                "auto",
                "NVIDIA GPUs: in the reference of 2021.14, not in that of 2021.9",
                _GPU,
            ),
            Setting(
                "I_MPI_OFFLOAD_IPC",
                "1" if ipc else "0",
                "undocumented",
                "GPUs of a node copy from each other's memory"
                if ipc
                else "GPUs of a node exchange through the host",
                "found in sites' job scripts only; not run",
            ),
            *ucx.libfabric_cache(preset),
        )

    def ucx_settings(self) -> tuple[Setting, ...]:
        return (
            Setting(
                "I_MPI_OFI_PROVIDER",
                "mlx",
                "the best that libfabric finds",
                "libfabric sends through UCX, by Intel's provider",
                f"{_REFERENCE.format('OFI-capable network fabrics control')}; not run",
            ),
        )

    def candidates(self, nodes: int) -> Candidates:
        variable = "I_MPI_ADJUST_ALLREDUCE"
        forced = (
            Candidate(
                name,
                (Setting(variable, number, "by a table", f"allreduce by {name}", _ADJUST),),
                number,
            )
            for name, number in _ALGORITHMS.items()
            if nodes > 1 or not name.startswith("topology")
        )
        # Its rules must name an algorithm for every size.
        return Candidates((Candidate(DEFAULT, ()), *forced), base=None)

    def native_rules(self, request: RuleRequest) -> NativeRules:
        value = rules_text(request.rules)
        why = "allreduce by message size, measured"
        setting = Setting("I_MPI_ADJUST_ALLREDUCE", value, "by a table", why, _ADJUST)
        return NativeRules((setting,))


def rules_text(rules: Rules) -> str:
    """I_MPI_ADJUST_ALLREDUCE: ID:LEAST-MOST from 0 on without a gap, separated by semicolons.

    As 2021.19 reads it, whatever its reference says: where a range ends in @RANKS-RANKS, the last
    of those with the same ranks counts for all sizes and other numbers of ranks. A range that
    does not begin where the one before it ends begins there nevertheless.
    """
    ends = [*(least for least, _ in rules[1:]), 2**31]
    return ";".join(
        f"{rule}:{least}-{end - 1}" for (least, rule), end in zip(rules, ends, strict=True)
    )
