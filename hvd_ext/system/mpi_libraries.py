"""Facts about MPI libraries: the text that identifies each, and names of its variables."""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, ...]
# Variables, and values with which a waiting thread yields its core.
YIELD_WHEN_IDLE = ("OMPI_MCA_mpi_yield_when_idle", "1")
THREAD_YIELD = ("I_MPI_THREAD_YIELD", "2")


@dataclass(frozen=True, slots=True)
class MpiFacts:
    """An MPI library.

    Attributes:
        name: its name for hvd-launch, such as "openmpi4".
        title: its name in texts.
        in_text: matches its name and version in the text of MPI_Get_library_version.
        allreduce: variables that choose its allreduce, as NAME=VALUE, with a value to try.
        yields: variable and value with which a waiting thread yields its core; None if it always
            does.
        passes_by: the option with which its mpirun passes a variable on; "" if it passes all.
        launcher_says: words, one of which its launcher's --version prints.
        simulated_as: SMPI's name for the allreduce choices that simulate it.
        file: its file in hvd_launch/backends, if that has another name.
    """

    name: str
    title: str
    in_text: re.Pattern[str]
    allreduce: tuple[str, ...]
    yields: tuple[str, str] | None = None
    passes_by: str = ""
    launcher_says: tuple[str, ...] = ()
    simulated_as: str = ""
    file: str = ""

    @property
    def backend(self) -> str:
        """Return the file of hvd_launch/backends that starts its ranks."""
        return self.file or self.name

    def version_in(self, text: str) -> Version | None:
        """Return the version, if the text is this library's."""
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
        ("Open MPI", "OpenRTE", "PRRTE", "prterun"),
        simulated_as="ompi",
        file="openmpi",
    )


def _mvapich2(name: str, title: str, suffix: str) -> MpiFacts:
    return MpiFacts(
        name,
        title,
        re.compile(
            rf"MVAPICH2{suffix}(?: Version\s*:?)?\s+v?(\d+)\.(\d+)(?:\.(\d+))?", re.IGNORECASE
        ),
        ("MV2_INTER_ALLREDUCE_TUNING=2",),
        simulated_as="mvapich2",
        file="mvapich2",
    )


def _of_mpich(name: str, title: str, pattern: str, launcher_says: tuple[str, ...] = ()) -> MpiFacts:
    return MpiFacts(
        name,
        title,
        re.compile(pattern),
        (
            "MPIR_CVAR_DEVICE_COLLECTIVES=percoll",
            "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE=0",
            "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring",
        ),
        launcher_says=launcher_says,
        simulated_as="mpich",
    )


# A library that is derived from another one comes before it, because both would match its words.
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
            simulated_as="impi",
        ),
        _of_mpich(
            "mpich",
            "MPICH",
            r"MPICH Version:\s*(\d+)\.(\d+)(?:\.(\d+))?",
            ("HYDRA", "MPICH"),
        ),
    )
}


def recognise(text: str) -> MpiFacts | None:
    """Return the library that reports this version; None if it is unknown."""
    return next((one for one in LIBRARIES.values() if one.version_in(text)), None)


def started_by(text: str) -> MpiFacts | None:
    """Return the library whose launcher's --version prints this; None if it is unknown."""
    libraries = LIBRARIES.values()
    return next((one for one in libraries if any(w in text for w in one.launcher_says)), None)
