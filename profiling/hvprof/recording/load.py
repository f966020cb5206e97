"""Reads a recording, the output folder of `hvprof record`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from hvd_ext.errors import UsageError
from hvd_ext.timeline import SUFFIX
from hvd_ext.units import counted
from hvprof.format.connections import (
    Connection,
    addresses_in,
    connections_in,
    flows_between,
)
from hvprof.format.current import read_current
from hvprof.format.layout import IN_CALL
from hvprof.format.reader import read_rank, read_tables
from hvprof.format.sites import read_sites
from hvprof.model import POLLS, RankRecording, Recording
from hvprof.printable import printable
from hvprof.recording.secrets import hide_secrets

META_NAME = "meta.json"
RANK_FILES = "rank-*.hvprof"
TRACE_FILES = "rank-*.trace"
CURRENT_FILES = "rank-*.now"
SITE_FILES = "rank-*.sites"
TIMELINE_FILES = f"rank-*{SUFFIX}"
# The folder of fingerprints, which the ranks write.
AUDIT_NAME = "audit"
# The file that hvprof record writes if the job hangs.
HANG_NAME = "hang.txt"

_META_KINDS = (
    ("command", list),
    ("start_unix_s", int | float),
    ("duration_s", int | float),
    ("exit_code", int),
    ("versions", dict),
    ("source", str),
)
# Some 3000 years: the limit of a calendar.
_MOST_S = 1e11
_MOST_CHARACTERS = 2000  # of causes
_RECORD = "hvprof record -o DIR -- COMMAND"


def load(directory: str | Path) -> Recording:
    """Read the recording in a directory.

    Args:
        directory: made by `hvprof record`.

    Returns:
        The recording; a rank that was killed is part of it.

    Raises:
        UsageError: it holds no recording, or one that is cut off, foreign, or of a
            newer version.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a folder: name a folder made by {_RECORD}")
    meta = read_meta(directory / META_NAME)
    paths = sorted(directory.glob(RANK_FILES))
    if not paths and (jobs := job_folders(directory)):
        names = ", ".join(map(str, jobs[:3])) + ", ..." * (len(jobs) > 3)
        raise UsageError(
            f"{directory} holds {counted(len(jobs), 'recording')}: name one of them ({names})"
        )
    if not paths:
        why = (
            "no rank called MPI or torch.distributed, or the recorder was not loaded"
            if meta
            else f"it has no {RANK_FILES}"
        )
        raise UsageError(f"{directory} holds no recording, {why}: record with {_RECORD}")
    found = [
        (_with_last_signs(_with_sites(rank, path), path), path)
        for path in paths
        if (rank := read_rank(path))
    ]
    if not found:
        raise UsageError(f"{directory} holds no recording: its ranks were killed; record again")
    ranks = sorted((rank for rank, _ in found), key=lambda rank: rank.rank)
    for before, after in pairwise(ranks):
        if before.rank == after.rank:
            raise UsageError(f"{directory} has two files of rank {after.rank}: keep one job's")
        if before.size != after.size:
            raise UsageError(
                f"{directory} has rank {before.rank} of {before.size} and rank {after.rank} of"
                f" {after.size}: keep one job's"
            )
    return Recording(
        directory=directory,
        ranks=tuple(ranks),
        # Earlier versions wrote it as it was.
        command=tuple(
            printable(word) for word in hide_secrets([str(w) for w in meta.get("command") or ()])
        ),
        host=printable(str(meta.get("host", ""))),
        start_unix_s=meta.get("start_unix_s"),
        duration_s=meta.get("duration_s"),
        exit_code=meta.get("exit_code"),
        versions={
            printable(str(name)): printable(str(version))
            for name, version in (meta.get("versions") or {}).items()
        },
        source=printable(meta.get("source") or "mpi"),
        rank_files={rank.rank: path for rank, path in found},
        hang=_hang(directory / HANG_NAME),
        flows=flows_between(_ends(found)),
    )


def _with_sites(rank: RankRecording, path: Path) -> RankRecording:
    sites = path.with_suffix(".sites")
    return (
        replace(rank, sites=read_sites(sites, read_tables(path).names)) if sites.exists() else rank
    )


def _with_last_signs(rank: RankRecording, path: Path) -> RankRecording:
    """A rank with its last sign of life and its last call, if it did not finish."""
    current = None
    with suppress(UsageError):
        current = None if rank.end_unix_s else read_current(path.with_suffix(".now"))
    if current is None:
        return rank
    signs_ns = [int(slot["since_ns"]) for slot in current.slots]
    if current.beat is not None:
        signs_ns.append(int(current.beat["at_ns"]))
    main = [slot for slot in current.slots if slot["thread"] == rank.pid]
    inside = [slot for slot in main if slot["flags"] & IN_CALL]
    last_s = max(signs_ns, default=0) / 1e9
    operation = read_tables(path).name(inside[0]["operation"].item()) if inside else ""
    counted = not inside or operation in POLLS
    return replace(
        rank,
        seen_unix_s=rank.start_unix_s + max(last_s - rank.start_clock_s, 0.0),
        open_call=operation,
        open_s=0.0 if counted else last_s - int(inside[0]["since_ns"]) / 1e9,
    )


@dataclass(frozen=True, slots=True)
class _End:
    """A rank with its connections."""

    rank: int
    host: str
    addresses: tuple[str, ...]
    connections: tuple[Connection, ...]


def _ends(found: Sequence[tuple[RankRecording, Path]]) -> Iterator[_End]:
    """The ranks whose files of current calls are still there: those with other hosts to talk to."""
    for rank, path in found:
        # A file that cannot be read has no links, and the rest of the report is valid.
        with suppress(UsageError):
            current = read_current(path.with_suffix(".now"))
            if current and current.beat is not None:
                beat = current.beat
                yield _End(rank.rank, rank.host, addresses_in(beat), connections_in(beat))


def _hang(path: Path) -> str:
    """The causes that hvprof record wrote down when ranks were blocked; "" without any."""
    try:
        with path.open(errors="replace") as file:
            causes, _, _ = file.read(_MOST_CHARACTERS).partition("\n\n")
    except OSError:
        return ""
    return printable(" ".join(causes.split()))


def job_folders(directory: Path) -> list[Path]:
    """Return the folders of the MPI jobs that a command started, in that order.

    The first job's folder is `directory` until the command has ended, and permanently if it was the
    only job; the folders of later jobs are in it, named by number.
    """
    numbered = [entry for entry in directory.glob("[1-9]*") if entry.name.isdecimal()]
    later = [entry for entry in numbered if any(entry.glob(RANK_FILES))]
    first = [directory] if any(directory.glob(RANK_FILES)) else []
    return [*first, *sorted(later, key=lambda entry: int(entry.name))]


def latest_job(directory: Path) -> Path:
    """The folder of the MPI job that a command started last; `directory` where there is none."""
    return (job_folders(directory) or [directory])[-1]


def read_meta(path: Path) -> dict:
    """Data of the whole job; empty if there is none.

    Raises:
        UsageError: the file is damaged or foreign.
    """
    try:
        meta = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}; remove it to read the ranks alone") from None
    if (
        not isinstance(meta, dict)
        or any(not isinstance(meta.get(key), kind | None) for key, kind in _META_KINDS)
        or any(not 0 <= (meta.get(key) or 0) < _MOST_S for key in ("start_unix_s", "duration_s"))
    ):
        raise UsageError(f"{path} is not hvprof's: remove it to read only the ranks")
    return meta
