"""Reads a recording: what `hvprof record` left in a directory."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from hvd_ext.errors import UsageError
from hvprof.bins import bin_edges, bucket_edges_s, quantile_s
from hvprof.files import printable, read_rank
from hvprof.model import (
    Cell,
    ClockOffset,
    Communicator,
    RankRecording,
    Recording,
    Region,
    RegistrationCache,
    Step,
)

__all__ = [
    "META_NAME",
    "RANK_FILES",
    "TRACE_FILES",
    "Cell",
    "ClockOffset",
    "Communicator",
    "RankRecording",
    "Recording",
    "Region",
    "RegistrationCache",
    "Step",
    "bin_edges",
    "bucket_edges_s",
    "load",
    "printable",
    "quantile_s",
]

META_NAME = "meta.json"
RANK_FILES = "rank-*.hvprof"
TRACE_FILES = "rank-*.trace"

_META_KINDS = (
    ("command", list),
    ("start_unix_s", float),
    ("duration_s", float),
    ("exit_code", int),
    ("versions", dict),
    ("source", str),
)
_RECORD = "hvprof record -o DIR -- COMMAND"


def load(directory: str | Path) -> Recording:
    """Read the recording in a directory.

    Raises:
        UsageError: it holds no recording, or one that is cut off, foreign, or of a
            newer version.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory: name one made by {_RECORD}")
    meta = _read_meta(directory / META_NAME)
    paths = sorted(directory.glob(RANK_FILES))
    if not paths:
        why = "its command started no MPI" if meta else f"it has no {RANK_FILES}"
        raise UsageError(f"{directory} holds no recording, {why}: make one with {_RECORD}")
    ranks = sorted((read_rank(path) for path in paths), key=lambda rank: rank.rank)
    for before, after in pairwise(ranks):
        if before.rank == after.rank:
            raise UsageError(f"{directory} has two files of rank {after.rank}: keep one job's")
    return Recording(
        directory=directory,
        ranks=tuple(ranks),
        command=tuple(printable(str(word)) for word in meta.get("command") or ()),
        host=printable(str(meta.get("host", ""))),
        start_unix_s=meta.get("start_unix_s"),
        duration_s=meta.get("duration_s"),
        exit_code=meta.get("exit_code"),
        versions={
            printable(str(name)): printable(str(version))
            for name, version in (meta.get("versions") or {}).items()
        },
        source=printable(meta.get("source") or "mpi"),
    )


def _read_meta(path: Path) -> dict:
    """The meta data, or nothing where there is none."""
    try:
        meta = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}; remove it to read the ranks alone") from None
    if not isinstance(meta, dict) or any(
        not isinstance(meta.get(key), (kind, type(None))) for key, kind in _META_KINDS
    ):
        raise UsageError(f"{path} is not hvprof's: remove it to read the ranks alone")
    return meta
