"""MPICH, and Hydra, which starts its ranks and those of the libraries made from it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_ext.system.mpi_libraries import Version
from hvd_launch.backends import slurm, ucx
from hvd_launch.backends.base import MpiLibrary
from hvd_launch.backends.tuning import (
    DEFAULT,
    Candidate,
    Candidates,
    NativeRules,
    RuleRequest,
    Rules,
)
from hvd_launch.job import Job
from hvd_launch.settings import Setting, wants_ipc

# CVARs are of type int; a message is never longer.
_NEVER = "2147483647"
_IPC_THRESHOLD = "1048576"
_CVAR = "mpivars (MPICH's list of control variables)"
_CSEL = f"{_CVAR}; MPICH, src/mpi/coll/src/csel.c"
# The names that MPICH's control variable and its selection file share.
_ALGORITHMS = (
    "recursive_doubling",
    "reduce_scatter_allgather",
    "recexch",
    "ring",
    "k_reduce_scatter_allgather",
    "recursive_multiplying",
)
# Entries of the selection file for these; without them they fail.
_PARAMETERS: dict[str, dict[str, Any]] = {
    "recexch": {"k=2": {"single_phase_recv=no": {}}},
    "k_reduce_scatter_allgather": {"k=2": {"single_phase_recv=no": {}}},
    "recursive_multiplying": {"k=2": {}},
}
AGENT_VARIABLE = "HYDRA_LAUNCHER_EXEC"
CALLED_ABORT = re.compile(
    rb"application called MPI_Abort\(MPI_COMM_WORLD, (?P<code>\d+)\) - process (?P<rank>\d+)"
)
RANK_VARIABLES = ("PMI_RANK", "MPI_LOCALRANKID")
LOCAL_SIZE_VARIABLE = "MPI_LOCALNRANKS"


def hydra_arguments(job: Job) -> list[str]:
    """Return arguments of Hydra, which has no limit of slots and passes every variable on."""
    hosts = ",".join(f"{host.name}:{host.slots}" for host in job.hosts)
    where = ["-hosts", hosts] if hosts else []
    return ["-np", str(job.size), *where, "-bind-to", "none", "-genvall", *job.command]


class Mpich(MpiLibrary):
    name = "mpich"
    assumed_version: Version = (5, 0)
    launchers = ("hydra", "srun")
    family = "mpich"
    rank_variables: tuple[str, str] | None = RANK_VARIABLES
    local_size_variable = LOCAL_SIZE_VARIABLE
    srun_plugins = (*slurm.PMI2, *slurm.PMIX)
    exported = "(MPICH_|MPIR_CVAR_).*"
    mpirun_is_shared = True
    version_command: tuple[str, ...] = ("mpichversion",)
    agent_variable = AGENT_VARIABLE
    asks_to_end = ("hydra", signal.SIGQUIT)
    abort_patterns = (
        re.compile(
            rb"Abort\(-?\d+\) on node \d+ \(rank (?P<rank>\d+) in comm 0\): "
            rb".*MPI_Abort\(.*, (?P<code>\d+)\)"
        ),
        CALLED_ABORT,
    )
    registration_cache_off = ("UCX_RCACHE_ENABLE=n", "FI_MR_CACHE_MONITOR=disabled")
    uuids_misread = "GPU 0"
    rules_file = "mpich_selection.json"
    # Prefix of the control variables, and their documentation.
    prefix = "MPIR_CVAR_"
    source = "MPICH's CVAR descriptions (MPI_T), src/mpid/ch4/shm/ipc/gpu/gpu_post.c"

    def recognise_mpirun(self, text: str) -> Version | None:
        """Return Hydra's version; it does not report its library."""
        first, _, rest = text.strip().partition("\n")
        match = re.search(r"^\s*Version:\s+(\d+)\.(\d+)(?:\.(\d+))?", rest, re.MULTILINE)
        if first.strip() != "HYDRA build details:" or match is None:
            return None
        return tuple(int(part) for part in match.groups() if part)

    def arguments(self, launcher: str, job: Job, environ: Mapping[str, str]) -> list[str]:
        del launcher, environ
        return hydra_arguments(job)

    def gpu_settings(self, preset: str, environ: Mapping[str, str]) -> tuple[Setting, ...]:
        del environ
        ipc = wants_ipc(preset)
        settings = [
            Setting(
                f"{self.prefix}ENABLE_GPU",
                "1",
                "1 in a library built for GPUs",
                "the library checks whether a buffer is on a GPU",
                self.source,
            ),
            Setting(
                f"{self.prefix}CH4_IPC_GPU_P2P_THRESHOLD",
                _IPC_THRESHOLD if ipc else _NEVER,
                _IPC_THRESHOLD,
                "messages from this many bytes on go from GPU to GPU by CUDA IPC"
                if ipc
                else "no message is long enough for CUDA IPC",
                self.source,
            ),
        ]
        return (*settings, *ucx.registration_cache(preset), *ucx.libfabric_cache(preset))

    def ucx_settings(self) -> tuple[Setting, ...]:
        return (
            Setting(
                f"{self.prefix}CH4_NETMOD",
                "ucx",
                "the first that was built in",
                "messages between nodes go through UCX",
                self.source,
            ),
        )

    def visibility(self, devices: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
        if not all(device.isdecimal() for device in devices):
            return (
                "pin",
                "MPICH reads the GPUs of CUDA_VISIBLE_DEVICES as numbers, which UUIDs are not",
            )
        return "rotate", "MPICH uses IPC only with GPUs in its own list, and numbers them globally"

    def candidates(self, nodes: int) -> Candidates:
        """Force an algorithm, without the device's own compositions, which would come first."""
        ruled = (
            Setting(
                "MPIR_CVAR_DEVICE_COLLECTIVES",
                "percoll",
                "all",
                "the next variable sets whether the device performs allreduce",
                _CVAR,
            ),
            Setting(
                "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE",
                "0",
                "1",
                "MPICH's algorithms perform it",
                _CVAR,
            ),
        )
        names = (*_ALGORITHMS, "smp") if nodes > 1 else _ALGORITHMS
        variable = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
        forced = (
            Candidate(
                name, (*ruled, Setting(variable, name, "auto", f"allreduce by {name}", _CVAR)), name
            )
            for name in names
        )
        candidates = (Candidate(DEFAULT, ()), Candidate("device_off", ruled), *forced)
        return Candidates(candidates, "device_off", ruled)

    def native_rules(self, request: RuleRequest) -> NativeRules | None:
        if request.selection is None:
            return None
        settings = (
            # MPICH would ignore the file if an algorithm were forced.
            Setting(
                "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM",
                "auto",
                "auto",
                "none is forced: the file decides",
                _CSEL,
            ),
            Setting(
                "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE",
                str(request.folder / self.rules_file),
                "none",
                "algorithm of each message",
                _CSEL,
            ),
        )
        text = selection_text(request.rules, request.size, request.selection)
        return NativeRules(settings, self.rules_file, text)

    def built_in_selection(self, library: Path) -> str:
        """Return MPICH's own tree of conditions and algorithms, which its library contains as text.

        A file with choices for allreduce replaces the whole tree, so it must also contain the rest
        of this version's tree.
        """
        data = library.read_bytes()
        start = 0
        while (start := data.find(b'{"collective=', start)) >= 0:
            text = data[start : data.find(b"\0", start)].decode(errors="replace")
            try:
                tree = json.loads(text)
            except ValueError:
                tree = {}
            if "MPIR_Allreduce_intra" in json.dumps(tree.get("collective=allreduce")):
                return text
            start += 1
        return ""

    def took(self, setting: Setting, actual: int | str | None) -> bool:
        """Whether MPI_T shows it: MPI_T shows a text's default, and a name's number."""
        if isinstance(actual, int) and not setting.value.isdecimal():
            return (actual == 0) == (setting.value == "auto")
        return isinstance(actual, str) or super().took(setting, actual)


def selection_text(rules: Rules, size: int, selection: Mapping[str, Any]) -> str:
    """Return MPICH's whole selection, with the rules for allreduce.

    MPICH's own choice stays for other sizes of communicators, for operations that a program defines
    (they need not be commutative), and for fewer elements than ranks.
    """
    own = selection["collective=allreduce"]
    within = own["comm_type=intra"]
    by_bytes = {}
    for (_, rule), (above, _) in zip(rules, [*rules[1:], (0, None)], strict=True):
        condition = f"avg_msg_size<{above}" if above else "avg_msg_size=any"
        by_bytes[condition] = within if rule is None else _leaf(rule)
    ours = {
        "is_op_built_in=yes": {"count<pow2": within, "count=any": by_bytes},
        "is_op_built_in=no": within,
    }
    by_ranks = {f"comm_size<{size}": within, f"comm_size<={size}": ours, "comm_size=any": within}
    changed = {**own, "comm_type=intra": by_ranks}
    return json.dumps({**selection, "collective=allreduce": changed}) + "\n"


def _leaf(rule: str) -> dict[str, Any]:
    return {f"algorithm=MPIR_Allreduce_intra_{rule}": _PARAMETERS.get(rule, {})}
