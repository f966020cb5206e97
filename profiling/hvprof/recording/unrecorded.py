"""Why a command, or a rank of it, was not recorded."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_ext.errors import UsageError
from hvd_ext.system.mpi_libraries import started_by
from hvd_ext.timeline import read
from hvd_ext.units import counted
from hvd_ext.variables import LEAST_STEP
from hvprof.format.reader import Head, read_head
from hvprof.recording.launchers import launcher_of
from hvprof.recording.load import RANK_FILES, TIMELINE_FILES

NO_TIMELINE = (
    "no timeline was recorded: no rank imported PyTorch 2.5 or newer in an environment that has"
    " hvd_ext, or all were killed before"
)
_LISTED = 8
_AT_ONCE_S = 10.0
_ELF, _INTERPRETER = b"\x7fELF", 3
# Names in a program that calls MPI: C's, and Fortran's as compilers write them.
_MPI_NAMES = (b"MPI_Init", b"mpi_init_", b"mpi_init_f08_")
_PRELOAD = (
    "the recorder was not loaded: LD_PRELOAD is lost by sudo, ssh, containers and"
    " srun --export=NONE; set what `hvprof env` prints on all ranks. If the recorder could not"
    " write its file, its line is above"
)


@dataclass(frozen=True)
class _Program:
    """An executable file of a command."""

    path: Path
    static: bool
    calls_mpi: bool

    @property
    def changes_user(self) -> bool:
        """The linker ignores LD_PRELOAD then."""
        mode = self.path.stat()
        return bool(mode.st_mode & (stat.S_ISUID | stat.S_ISGID)) and mode.st_uid != os.getuid()


def why_nothing(command: Sequence[str]) -> str:
    """Return the line about a command that has ended without a recorded rank."""
    program = _program(command)
    if program is None or not program.calls_mpi:
        said = f"{command[0]} called neither MPI nor torch.distributed, so nothing was recorded"
        if any("torch" in word or word.endswith(".py") for word in command):
            said += "; for torch.distributed install hvd_ext next to PyTorch"
        return said
    if program.static:
        why = "it is linked statically; link it with the flags that `hvprof link --static` prints"
    elif program.changes_user:
        why = (
            "it runs as another user, so the linker ignores LD_PRELOAD; start a copy of it, or link"
            " it with the flags that `hvprof link` prints"
        )
    else:
        why = _PRELOAD
    return f"{program.path.name} calls MPI, and nothing was recorded: {why}"


def missing_ranks(folder: Path) -> str:
    """Return the line about the ranks of a job that have no recording; "" if all have one."""
    heads = _heads(folder)
    size = max((head.size for head in heads), default=0)
    missing = sorted(set(range(size)) - {head.rank for head in heads})
    if not missing:
        return ""
    shown = ", ".join(map(str, missing[:_LISTED])) + ", ..." * (len(missing) > _LISTED)
    were = f"ranks {shown} were" if len(missing) > 1 else f"rank {shown} was"
    return f"{were} not recorded: the program is linked statically, or {_PRELOAD}"


def missing_steps(folder: Path) -> str:
    """Return the line about a job that ended before its profiled steps did, or "".

    The first rank represents all, because they take the same steps.
    """
    path = min(folder.glob(TIMELINE_FILES), default=None)
    try:
        timeline = None if path is None else read(path)
    except UsageError as error:
        return str(error)
    if timeline is None or timeline.seen >= timeline.last:
        return ""
    asked = timeline.last - timeline.first + 1
    return (
        f"the timeline has {len(timeline.steps)} of {counted(asked, 'step')}: "
        f"rank {timeline.rank} ended after step {timeline.seen}; ask for earlier ones, such as "
        f"--gpu {LEAST_STEP}-{LEAST_STEP + asked - 1}"
    )


def singletons(folders: Sequence[Path], command: Sequence[str], launcher_says: str) -> str:
    """Return the line about a launcher whose processes did not become one job, or "".

    Args:
        folders: folders of the jobs that the command started.
        command: the command with its launcher.
        launcher_says: the launcher's text about its version.
    """
    launcher = Path(command[0]).name
    heads = [head for folder in folders for head in _heads(folder)]
    if not launcher_of(launcher) or len(folders) < 2 or any(head.size > 1 for head in heads):
        return ""
    # If they ran one after the other, this may be intended: a script that starts a program several
    # times.
    starts_s = sorted(head.start_unix_ns / 1e9 for head in heads)
    if starts_s[-1] - starts_s[0] > _AT_ONCE_S:
        return ""
    library = started_by(launcher_says)
    known = f", and {launcher} is {library.title}'s" if library else ""
    return (
        f"{launcher} started {len(heads)} processes, and each is a job of 1 rank: the program's MPI"
        f" is another one{known}; start it with that library's launcher"
    )


def _heads(folder: Path) -> list[Head]:
    found: list[Head | None] = []
    for path in folder.glob(RANK_FILES):
        with contextlib.suppress(UsageError):
            found.append(read_head(path))
    return [head for head in found if head]


def _program(command: Sequence[str]) -> _Program | None:
    """The last executable of a command that is no script and no launcher."""
    for word in reversed(command):
        found = shutil.which(word)
        if found is None or launcher_of(word):
            continue
        with contextlib.suppress(OSError):
            data = Path(found).read_bytes()
            if data.startswith(_ELF):
                calls_mpi = any(name in data for name in _MPI_NAMES)
                return _Program(Path(found), _INTERPRETER not in _segments(data), calls_mpi)
    return None


def _segments(data: bytes) -> set[int]:
    """The kinds of segments of an executable of 64 bits."""
    order = "<" if data[5] == 1 else ">"
    (first,) = struct.unpack_from(f"{order}Q", data, 32)
    size, count = struct.unpack_from(f"{order}HH", data, 54)
    kinds = (struct.unpack_from(f"{order}I", data, first + size * i) for i in range(count))
    return {kind for (kind,) in kinds}
