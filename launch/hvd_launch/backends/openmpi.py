"""Open MPI 4 (ORTE) and 5 (PRRTE).

MCA parameters are set as OMPI_MCA_ variables, which both versions and horovodrun pass to every
rank.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence

from hvd_ext.system.mpi_libraries import YIELD_WHEN_IDLE, Version
from hvd_ext.units import KIB
from hvd_launch.backends import slurm, ucx
from hvd_launch.backends.base import YIELDS, MpiLibrary
from hvd_launch.backends.tuning import (
    DEFAULT,
    Candidate,
    Candidates,
    NativeRules,
    RuleRequest,
    Rules,
)
from hvd_launch.job import Job
from hvd_launch.settings import Setting, wants_ipc, wants_registration_cache

_SMCUDA = "ompi_info --param btl smcuda --level 9"
_PINNED = "ompi_info --param mpi all --level 9; Open MPI FAQ, tuning with leave_pinned"
_UCC = "ompi_info --param coll ucc --level 9; ompi/mca/coll/cuda, priority 78"
_TUNED = "ompi_info --param coll tuned --level 9"
_HAN = "ompi_info --param coll han --level 9"
_RULES = "ompi/mca/coll/base/coll_base_dynamic_file.c; coll_tuned_decision_dynamic.c"
_TCP = "ompi_info --param btl tcp --level 9; python -m benchmarks.compression"
# coll/tuned's ids of algorithms and segments (7, allgather_reduce, came after 5.0).
_ALGORITHMS = {
    "linear": "1 0",
    "nonoverlapping": "2 0",
    "recursive_doubling": "3 0",
    "ring": "4 0",
    "segmented_ring_64KiB": "5 65536",
    "segmented_ring_1MiB": "5 1048576",
    "rabenseifner": "6 0",
}
_ALLREDUCE = 2  # coll/tuned's id of the collective
# The first release of Open MPI 5 whose rules have a fifth column.
_FIVE_COLUMNS = (5, 0, 7)


class _OpenMpi(MpiLibrary):
    launchers = ("mpirun", "srun")
    family = "openmpi"
    rank_variables = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    local_size_variable = "OMPI_COMM_WORLD_LOCAL_SIZE"
    srun_plugins = slurm.PMIX
    info_command = "ompi_info"
    asks_to_end = ("mpirun", signal.SIGURG)
    abort_patterns = (re.compile(rb"MPI_ABORT was invoked on rank (?P<rank>\d+)(?P<code>)"),)
    registration_cache_off = ("OMPI_MCA_mpi_leave_pinned=0", "UCX_RCACHE_ENABLE=n")
    rules_file = "openmpi_rules.conf"
    yields = Setting(
        *YIELD_WHEN_IDLE,
        "0, but 1 where mpirun knows of more ranks than slots",
        YIELDS,
        "ompi_info --param mpi all --level 9",
    )

    # hvd_ext sends pieces of up to 512 KiB between nodes, with its receives posted before. The
    # limit includes Open MPI's header: with a limit of 512 KiB, a piece of that length would be
    # announced.
    eager = Setting(
        "OMPI_MCA_btl_tcp_eager_limit",
        str(516 * KIB),
        str(64 * KIB),
        "longer messages over TCP wait for both processes, which costs a tenth of the bandwidth",
        _TCP,
    )

    def settings(self) -> tuple[Setting, ...]:
        return (*super().settings(), self.eager)

    def recognise_mpirun(self, text: str) -> Version | None:
        first = text.strip().partition("\n")[0].strip()
        match = re.fullmatch(r"\S+ \((?:Open MPI|OpenRTE)\) (\d+)\.(\d+)\.(\d+)\S*", first)
        version = tuple(map(int, match.groups())) if match else (0,)
        return version if version[0] >= 4 and self._is_ours(version) else None

    def _is_ours(self, version: Version) -> bool:
        raise NotImplementedError

    def arguments(self, launcher: str, job: Job, environ: Mapping[str, str]) -> list[str]:
        del launcher, environ
        # Open MPI 5 takes no single-dash long options.
        words = ["--allow-run-as-root"] if job.as_root else []
        words += ["-np", str(job.size)]
        if job.hosts:
            words += ["--host", ",".join(f"{host.name}:{host.slots}" for host in job.hosts)]
        if job.oversubscribed:
            words += ["--oversubscribe"]
        # A rank of a training framework has several threads, which a binding would put on one core.
        words += ["--bind-to", "none", "--map-by", "slot"]
        for name in job.exported:
            words += ["-x", name]
        return [*words, *job.command]

    def gpu_settings(self, preset: str, environ: Mapping[str, str]) -> tuple[Setting, ...]:
        """Return settings for the smcuda transport, and for UCX if it is used."""
        del environ
        ipc, cache = wants_ipc(preset), wants_registration_cache(preset)
        settings = [
            Setting(
                "OMPI_MCA_btl_smcuda_use_cuda_ipc",
                "1" if ipc else "0",
                "1",
                "GPUs of a node copy from each other's memory (pml ob1, as under horovodrun)"
                if ipc
                else "GPUs of a node exchange through the host (pml ob1, as under horovodrun)",
                _SMCUDA,
            ),
            Setting(
                "OMPI_MCA_mpi_leave_pinned",
                "1" if cache else "0",
                "-1: on where a transport asks for it",
                "keeps memory registered with the network card between messages (pml ob1)"
                if cache
                else "registers memory again for each large message (pml ob1)",
                _PINNED,
            ),
            *ucx.gpu_settings(preset),
        ]
        if ipc:
            above = "coll/cuda (priority 78) would stage an allreduce of GPU buffers in the host,"
            settings += [
                Setting(
                    "OMPI_MCA_coll_ucc_enable",
                    "1",
                    "0",
                    f"{above} where CUDA IPC does not help: UCC reduces on the GPUs, if it is "
                    "built in",
                    _UCC,
                ),
                Setting(
                    "OMPI_MCA_coll_ucc_priority",
                    "100",
                    "below coll/cuda's",
                    "above coll/cuda's 78, else UCC is never used",
                    _UCC,
                ),
            ]
        return tuple(settings)

    def ucx_settings(self) -> tuple[Setting, ...]:
        # On any network.
        source = "ompi_info --param pml all --level 9"
        any_network = (
            "Open MPI asks for UCX only where it names an InfiniBand network or a GPU link"
        )
        return (
            Setting(
                "OMPI_MCA_pml",
                "ucx",
                "ucx where it finds a fast network, else ob1",
                "point-to-point messages go through UCX, which horovodrun forbids (pml ob1)",
                f"{source}; horovod/runner/mpi_run.py",
            ),
            Setting(
                "OMPI_MCA_pml_ucx_tls", "any", "rc, ud, dc, cuda_ipc, rocm_ipc", any_network, source
            ),
            Setting("OMPI_MCA_pml_ucx_devices", "any", "mlx*", any_network, source),
        )

    def visibility(self, devices: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
        if "ucx" in environ.get("OMPI_MCA_pml", ""):
            return "pin", "UCX opens IPC handles of GPUs that the rank does not see"
        return "all", "Open MPI's smcuda compares device ordinals, which must differ"

    def components(self, listed: str) -> tuple[str, ...]:
        return tuple(" ".join(pair) for pair in re.findall(r"MCA (pml|coll): (\S+) ", listed))

    def gpu_allreduce_note(self, components: Sequence[str]) -> str:
        if "coll ucc" in components:
            return ""
        return (
            "Open MPI without UCC stages an allreduce of GPU buffers in the host (coll/cuda), "
            "whatever CUDA IPC is set to"
        )

    def native_rules(self, request: RuleRequest) -> NativeRules:
        columns = 5 if request.version >= _FIVE_COLUMNS else 4
        text = rules_text(request.rules, request.size, columns)
        settings = (
            # Open MPI would ignore the file if an algorithm were forced.
            Setting(
                "OMPI_MCA_coll_tuned_allreduce_algorithm",
                "0",
                "0",
                "none is forced: the file decides",
                _RULES,
            ),
            Setting(
                "OMPI_MCA_coll_tuned_dynamic_rules_filename",
                str(request.folder / self.rules_file),
                "none",
                "algorithm of each message",
                _RULES,
            ),
        )
        return NativeRules(settings, self.rules_file, text)

    def control_variable(self, setting: Setting) -> str:
        return setting.name.removeprefix("OMPI_MCA_")


class OpenMpi4(_OpenMpi):
    name = "openmpi4"
    assumed_version = (4, 1)
    agent_variable = "OMPI_MCA_plm_rsh_agent"
    # It reads both streams in pieces (stdout is a terminal), but a packet of up to 4096 bytes as a
    # whole: ORTE_IOF_BASE_MSG_MAX.
    mixes_packets = True
    horovodrun_note = ""

    def _is_ours(self, version: Version) -> bool:
        return version[0] < 5

    def candidates(self, nodes: int) -> Candidates:
        """Let coll/tuned decide: coll/han (two levels) gets a priority of 0."""
        ruled = (_dynamic_rules(),)
        two_levels = Setting(
            "OMPI_MCA_coll_han_priority",
            "40",
            "0",
            "allreduce within nodes, then between them",
            _HAN,
        )
        longer = Setting(
            "OMPI_MCA_coll_han_allreduce_segsize", str(2**20), "65536", "its segments", _HAN
        )
        han = [Candidate("han", (two_levels,)), Candidate("han_1MiB", (two_levels, longer))]
        levels = han if nodes > 1 else []
        return Candidates((Candidate(DEFAULT, ()), *levels, *_forced(ruled)), DEFAULT, ruled)


class OpenMpi5(_OpenMpi):
    name = "openmpi5"
    assumed_version = (5, 0)
    agent_variable = "PRTE_MCA_plm_ssh_agent"
    horovodrun_note = (
        "horovodrun 0.28.1 gives Open MPI 5 an option that it no longer has (-bind-to): use "
        "hvd-launch run, or horovodrun --mpi --binding-args='--bind-to none --map-by slot'"
    )

    def _is_ours(self, version: Version) -> bool:
        return version[0] >= 5

    def candidates(self, nodes: int) -> Candidates:
        """Let coll/tuned decide on several nodes, where coll/han (35) outranks its rules (30)."""
        if nodes == 1:
            ruled: tuple[Setting, ...] = (_dynamic_rules(),)
            return Candidates((Candidate(DEFAULT, ()), *_forced(ruled)), DEFAULT, ruled)
        no_han = Setting(
            "OMPI_MCA_coll_han_priority", "0", "35", "lets coll/tuned decide on several nodes", _HAN
        )
        ruled = (no_han, _dynamic_rules())
        candidates = (Candidate(DEFAULT, ()), Candidate("tuned", (no_han,)), *_forced(ruled))
        return Candidates(candidates, "tuned", ruled)


def rules_text(rules: Rules, size: int, columns: int) -> str:
    """Return coll/tuned's file of rules, with `columns` for a rule: 4, or 5 in its version 2.

    Algorithm 0 is coll/tuned's own decision. A communicator uses the rules of the nearest lower
    size, so the entry for size + 1 keeps larger ones from using those of `size`.
    """
    tail = " 0" if columns == 5 else ""
    lines = ["rule-file-version-2"] if columns == 5 else []
    lines += [
        "1 # collective",
        f"{_ALLREDUCE} # allreduce",
        "2 # communicator sizes",
        f"{size} # ranks",
        f"{len(rules)} # message sizes: bytes, algorithm, fan-out, segment bytes"
        + (", requests" if tail else ""),
    ]
    for least, rule in rules:
        algorithm, segment = (rule or "0 0").split()
        lines.append(f"{least} {algorithm} 0 {segment}{tail}")
    lines += [f"{size + 1} # ranks and more", "1 # message size", f"0 0 0 0{tail}"]
    return "\n".join(lines) + "\n"


def _dynamic_rules() -> Setting:
    return Setting(
        "OMPI_MCA_coll_tuned_use_dynamic_rules", "1", "0", "coll/tuned takes rules", _TUNED
    )


def _forced(ruled: tuple[Setting, ...]) -> Iterable[Candidate]:
    prefix = "OMPI_MCA_coll_tuned_allreduce_algorithm"
    for name, rule in _ALGORITHMS.items():
        number, segment = rule.split()
        forced = [Setting(prefix, number, "0", f"allreduce by {name}", _TUNED)]
        if segment != "0":
            forced.append(Setting(f"{prefix}_segmentsize", segment, "0", "its segments", _TUNED))
        yield Candidate(name, (*ruled, *forced), rule)
