"""srun as the launcher of any MPI library, and the data of an allocation. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hvd_launch.backends.base import MpiLibrary
from hvd_launch.job import Job, even_slots

# Interfaces that an MPI library's ranks can use, the best first.
PMIX = ("pmix_v5", "pmix_v4", "pmix_v3", "pmix")
PMI2 = ("pmi2",)
# Lines that srun prints when a task ends badly: the rank, and its code.
ABORT_PATTERN = re.compile(
    rb"^srun: error: \S+: tasks? (?P<rank>\d+): Exited with exit code (?P<code>\d+)"
)


def plugins(library: MpiLibrary, mpi_list: str) -> list[str]:
    """Return the plugins that `srun --mpi=` could use for a library, the best first.

    Args:
        library: library of the ranks.
        mpi_list: output of `srun --mpi=list`.
    """
    offered = re.findall(r"[a-z0-9_]+", mpi_list)
    return [name for name in library.srun_plugins if name in offered]


def arguments(job: Job, mpi_plugin: str) -> list[str]:
    """Return arguments of srun.

    Raises:
        UsageError: hosts take different numbers of ranks.
    """
    arguments = [f"--mpi={mpi_plugin}", f"--ntasks={job.size}"]
    if job.hosts:
        slots = even_slots(job, "srun")
        arguments += [f"--nodes={len(job.hosts)}", f"--ntasks-per-node={slots}"]
        arguments += ["--nodelist=" + ",".join(host.name for host in job.hosts)]
    if job.oversubscribed:
        arguments += ["--overcommit"]
    # The step may use the batch script's resources, a rank's threads may use any free core, and
    # neither a failed rank nor Ctrl-C leaves the other ranks waiting.
    arguments += ["--overlap", "--cpu-bind=none", "--kill-on-bad-exit=1", "--quit-on-interrupt"]
    return [*arguments, "--export=ALL", *job.command]


def allocated(environ: Mapping[str, str]) -> bool:
    """Whether this process runs inside a Slurm allocation."""
    return "SLURM_JOB_ID" in environ


def tasks(environ: Mapping[str, str]) -> int | None:
    """Return the number of requested tasks of the allocation, if there is one."""
    text = environ.get("SLURM_NTASKS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def slots(environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return how many ranks each node of the allocation takes; None if unknown."""
    for name in ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        counts = expand_counts(environ.get(name, ""))
        if counts:
            return counts
    return None


def step_slots(environ: Mapping[str, str]) -> int | None:
    """Return how many tasks of its step run on a task's node; None if unknown."""
    counts = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = environ.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None


def first_host(environ: Mapping[str, str]) -> str | None:
    """Return the first host of the allocation: node03 for "node[03-05,8],big1"."""
    match = re.match(r"([A-Za-z0-9._-]+)(?:\[(\d+))?", environ.get("SLURM_JOB_NODELIST", ""))
    return match.group(1) + (match.group(2) or "") if match else None


def expand_counts(text: str) -> tuple[int, ...]:
    """Read Slurm's "4(x2),1" as (4, 4, 1); empty if the text has another form."""
    counts: list[int] = []
    for entry in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", entry)
        if match is None:
            return ()
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return tuple(counts)
