"""Rows of a rank's file with counters of the kernel and of the machine."""

from __future__ import annotations

from typing import Any

from hvprof.machine import Machine, RunUsage


def usage_of(row: Any) -> RunUsage | None:
    """Return the kernel counters of the run; None if the rank did not reach MPI_Finalize."""
    if not row["threads"]:
        return None
    times_s = {
        name: row[f"{name}_ns"].item() / 1e9
        for name in ("finalize", "cpu", "queued", "process", "process_queued", "before", "after")
    }
    counts = {name: row[name].item() for name in ("file_bytes", "threads", "calling_threads")}
    return RunUsage(**{f"{name}_s": value for name, value in times_s.items()}, **counts)


def machine_of(row: Any) -> Machine | None:
    """Return the machine's counters; None if the recorder has not read them."""
    if not row["looks"] and not row["trials"]:
        return None
    return Machine(
        looks=row["looks"].item(),
        ghz_sum=row["mhz_sum"].item() / 1e3,
        periods=row["periods"].item(),
        throttled=row["throttled"].item(),
        quota_cores=row["quota_millicores"].item() / 1e3,
        trials=row["trials"].item(),
        tried_s=row["tried_ns"].item() / 1e9,
        trials_s2=row["trials_ns2"].item() / 1e18,
    )
