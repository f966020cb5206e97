"""Facts about MPI libraries: the text that each is recognized by, and names of its variables."""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, ...]
# Variables, and values with which a waiting thread leaves its core.
YIELD_WHEN_IDLE = ("OMPI_MCA_mpi_yield_when_idle", "1")
THREAD_YIELD = ("I_MPI_THREAD_YIELD", "2")


@dataclass(frozen=True, slots=True)
class MpiFacts:
    """An MPI library.

    Attributes:
        name: as hvd-launch takes it, such as "openmpi4".
        title: as a person calls it.
        in_text: matches its name and version in what MPI_Get_library_version says.
        allreduce: variables that choose its allreduce, as NAME=VALUE, with a value to try.
        yields: variable and value with which a waiting thread leaves its core; None where it
            always does.
        passes_by: the word with which its mpirun passes a variable on; "" where it passes all.
    """

    name: str
    title: str
    in_text: re.Pattern[str]
    allreduce: tuple[str, ...]
    yields: tuple[str, str] | None = None
    passes_by: str = ""

    def version_in(self, text: str) -> Version | None:
        """The version, if the text is this library's."""
        match = self.in_text.search(text)
        return tuple(int(part) for part in match.groups() if part) if match else None


def _open_mpi(name: str, majors: str) -> MpiFacts:
    return MpiFacts(
        name,
        "Open MPI",
        re.compile(rf"Open MPI v({majors})\.(\d+)\.(\d+)"),
        (
            "OMPI_MCA_coll_tuned_use_dynamic_rules=1",
            "OMPI_MCA_coll_tuned_allreduce_algorithm=4",
        ),
        YIELD_WHEN_IDLE,
        "-x",
    )


def _mvapich2(name: str, title: str, suffix: str) -> MpiFacts:
    return MpiFacts(
        name,
        title,
        re.compile(
            rf"MVAPICH2{suffix}(?: Version\s*:?)?\s+v?(\d+)\.(\d+)(?:\.(\d+))?", re.IGNORECASE
        ),
        ("MV2_INTER_ALLREDUCE_TUNING=2",),
    )


def _of_mpich(name: str, title: str, pattern: str) -> MpiFacts:
    return MpiFacts(
        name,
        title,
        re.compile(pattern),
        (
            "MPIR_CVAR_DEVICE_COLLECTIVES=percoll",
            "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE=0",
            "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring",
        ),
    )


# Those that are made from another stand before it: both would recognize its words.
LIBRARIES = {
    one.name: one
    for one in (
        _open_mpi("openmpi4", "[1-4]"),
        _open_mpi("openmpi5", r"[5-9]|\d\d+"),
        _mvapich2("mvapich2", "MVAPICH2", ""),
        _mvapich2("mvapich2-gdr", "MVAPICH2-GDR", "-GDR"),
        _of_mpich(
            "mvapich",
            "MVAPICH",
            r"MVAPICH(?:-Plus)?(?: Version)?\s*:?\s*v?([34])\.(\d+)(?:\.(\d+))?",
        ),
        MpiFacts(
            "intelmpi",
            "Intel MPI",
            re.compile(r"Intel\(R\) MPI Library (\d{4})(?:\.(\d+))?"),
            ("I_MPI_ADJUST_ALLREDUCE=8",),
            THREAD_YIELD,
        ),
        _of_mpich("mpich", "MPICH", r"MPICH Version:\s*(\d+)\.(\d+)(?:\.(\d+))?"),
    )
}


def recognise(text: str) -> MpiFacts | None:
    """The library that reports this version; None if it is not known."""
    return next((one for one in LIBRARIES.values() if one.version_in(text)), None)
