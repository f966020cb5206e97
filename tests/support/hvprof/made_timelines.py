"""Timelines of Horovod that are made here."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def begin(pid: int, name: str, at: int) -> Event:
    return {"ph": "B", "name": name, "ts": at, "pid": pid}


def end(pid: int, at: int, **details: str) -> Event:
    return {"ph": "E", "ts": at, "pid": pid, **({"args": details} if details else {})}


def ready(pid: int, rank: int, at: int) -> Event:
    return {"ph": "X", "name": str(rank), "ts": at, "pid": pid, "dur": 0}


def single(pid: int, at: int, shape: str = "[10, 25]", dtype: str = "float32") -> list[Event]:
    """One tensor alone, in 100 us."""
    return [
        begin(pid, "NEGOTIATE_ALLREDUCE", at),
        ready(pid, 0, at),
        ready(pid, 3, at + 5),
        end(pid, at + 5),
        begin(pid, "ALLREDUCE", at + 10),
        begin(pid, "MPI_ALLREDUCE", at + 10),
        end(pid, at + 110),
        end(pid, at + 112, dtype=dtype, shape=shape),
    ]


FUSED = [
    begin(1, "ALLREDUCE", 0),
    begin(2, "ALLREDUCE", 0),
    begin(1, "MEMCPY_IN_FUSION_BUFFER", 1),
    begin(2, "MEMCPY_IN_FUSION_BUFFER", 1),
    end(1, 5),
    end(2, 6),
    begin(1, "MPI_ALLREDUCE", 7),
    begin(2, "MPI_ALLREDUCE", 8),
    end(1, 58),
    # The next message starts before the last tensor of this one is done.
    begin(3, "ALLREDUCE", 58),
    begin(3, "MPI_ALLREDUCE", 59),
    end(2, 60),
    end(1, 61, dtype="float16", shape="[100]"),
    end(3, 69),
    end(2, 70, dtype="float16", shape="[]"),
    end(3, 71, dtype="int64", shape="[3]"),
]
