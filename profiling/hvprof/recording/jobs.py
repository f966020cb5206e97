"""The MPI jobs of one recorded command, each with its own recording.

While they run, the first job's files lie in the command's folder, and those of job N in its folder
"N", where N counts from 2 (recorder/jobs.h). Once the command has ended, the first job of several
is in "1".
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvd_ext.audit import SUFFIX
from hvd_ext.errors import UsageError
from hvd_ext.system.files import write_json
from hvprof.format.reader import read_rank
from hvprof.model import RankRecording
from hvprof.recording.load import (
    AUDIT_NAME,
    CURRENT_FILES,
    HANG_NAME,
    META_NAME,
    RANK_FILES,
    SITE_FILES,
    TIMELINE_FILES,
    TRACE_FILES,
    job_folders,
    read_meta,
)

# Links by which ranks agree: on the number of their job (recorder/jobs.h), and on whether all of
# them have a trace (recorder/decision.h); and by which they report that their MPI cannot be
# recorded. Their targets are text: a tool that follows links would find nothing there.
_JOB_LINKS, _DECISION, _STRANGE_MPI = "job-*", "decision", "strange-mpi"


def separate(directory: Path, meta: Mapping[str, Any]) -> None:
    """Give each of a command's jobs a folder with its own times, once all have ended.

    Args:
        directory: the command's directory; stays as it is if the command had one job.
        meta: its description of the command.
    """
    folders = job_folders(directory)
    _remove_links(directory)
    if folders in ([], [directory]):
        return
    if folders[0] == directory:
        folders[0] = directory / "1"
        folders[0].mkdir(exist_ok=True)
        for path in (*_files(directory), directory / AUDIT_NAME):
            if path.exists():
                path.rename(folders[0] / path.name)
    for folder in folders:
        _remove_links(folder)
        # The exit code is the command's: it does not say which of the jobs failed.
        own = {**meta, **_times(folder), "exit_code": None, "job": int(folder.name)}
        write_json(folder / META_NAME, own)


def strange_mpi(directory: Path) -> str:
    """Return why ranks did not record, as they reported before `separate`, or ""."""
    try:
        return str((directory / _STRANGE_MPI).readlink())
    except OSError:
        return ""


def remove(directory: Path) -> None:
    """Remove an earlier command's recording from a folder, and nothing else."""
    for folder in job_folders(directory):
        # A recording that was made there under another name stays.
        meta = read_meta(folder / META_NAME)
        if folder != directory and (not meta or "job" in meta):
            _remove(folder)
            with contextlib.suppress(OSError):
                folder.rmdir()
    _remove(directory)


def _remove(folder: Path) -> None:
    for path in (*_files(folder), folder / META_NAME):
        path.unlink(missing_ok=True)
    _remove_links(folder)
    for path in (folder / AUDIT_NAME).glob(f"*{SUFFIX}"):
        path.unlink()


def _files(folder: Path) -> list[Path]:
    """Files of one job's ranks, and those that were written about it while it ran."""
    patterns = (*(RANK_FILES, TRACE_FILES, CURRENT_FILES, SITE_FILES, TIMELINE_FILES, HANG_NAME),)
    return [path for pattern in patterns for path in folder.glob(pattern)]


def _remove_links(folder: Path) -> None:
    # glob() does not find a link by its name alone, as it leads nowhere.
    for path in (*folder.glob(_JOB_LINKS), folder / _DECISION, folder / _STRANGE_MPI):
        if path.is_symlink():
            path.unlink()


def _times(folder: Path) -> dict[str, float | None]:
    """Return when a job began and how long it ran; None if not every rank reports it."""
    ranks = _ranks(folder)
    if not ranks:
        return {"start_unix_s": None, "duration_s": None}
    start_s = min(rank.start_unix_s for rank in ranks)
    ends_s = [rank.end_unix_s for rank in ranks if rank.end_unix_s is not None]
    ran_s = max(0.0, max(ends_s) - start_s) if len(ends_s) == len(ranks) else None
    return {"start_unix_s": start_s, "duration_s": ran_s}


def _ranks(folder: Path) -> list[RankRecording]:
    """A job's ranks, without those whose files cannot be read."""
    found: list[RankRecording | None] = []
    for path in folder.glob(RANK_FILES):
        with contextlib.suppress(UsageError):
            found.append(read_rank(path))
    return [rank for rank in found if rank]
