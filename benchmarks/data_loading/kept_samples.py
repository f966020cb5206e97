"""A rank of benchmarks.data_loading: epochs from a store, or from the file again."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import BenchmarkError
from hvd_ext.data import DataLoader, Order, PackedFile
from hvd_ext.data.store import store
from testbed import timing
from testbed.ranks import report

_AHEAD = 2


def disk_bytes() -> int:
    """Bytes that this process has read from disks so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def set_cache(state: str, path: Path) -> None:
    """Have none or all of a file in the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if state == "cold":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while state == "warm" and file.read(2**22):
            pass


def epochs(path: Path, rounds: int, local_size: int) -> None:
    """Time epochs of a packed file on all ranks, alternating the ways; rank 0 reports.

    Args:
        path: the file.
        rounds: epochs of each way.
        local_size: ranks that act as one node.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    store.sharing_memory = lambda comm: comm.Split(comm.rank // local_size)
    loaders = {}
    for name in ("store", "cold", "warm"):
        file = PackedFile(path)
        # An epoch ends with a step: no look-ahead is left from the one before.
        loaders[name] = DataLoader(
            file, 1, Order(len(file), 1), rank=comm.rank, size=comm.size, collate_fn=_first_bytes,
            num_workers=2, prefetch_factor=_AHEAD, store="memory" if name == "store" else None,
        )  # fmt: skip
    epoch_bytes = path.stat().st_size
    list(loaders["store"])  # epoch 1 reads
    times: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(rounds):
        for name, loader in loaders.items():
            if comm.rank == 0 and name != "store":
                set_cache(name, path)
            came = disk_bytes()
            comm.Barrier()
            began_s = time.perf_counter()
            list(loader)
            comm.Barrier()
            times[name].append(time.perf_counter() - began_s)
            came = comm.allreduce(disk_bytes() - came)
            # Of the first and the last steps some were read or will be in other epochs.
            least, most = (0.8, 1.2) if name == "cold" else (0.0, 0.02)
            if not least * epoch_bytes <= came <= most * epoch_bytes:
                raise BenchmarkError(f"{name}: {came} of {epoch_bytes} bytes came from the disk")
            if name == "cold":
                loader.close()  # what is read ahead of the next epoch would not be cold
    did = loaders["store"].statistics()
    sent = comm.allreduce(did.bytes_sent)
    for loader in loaders.values():
        loader.close()
    found: dict[str, Any] = {"sent_bytes": sent, "epochs": rounds + 1}
    found["gb_per_s"] = {
        name: timing.summary([epoch_bytes / s / 1e9 for s in seconds])
        for name, seconds in times.items()
    }
    for name in ("cold", "warm"):
        ratios = [a / b for a, b in zip(times[name], times["store"], strict=True)]
        median = statistics.median(times[name]) / statistics.median(times["store"])
        found[f"over_{name}"] = {"ratio": median, "rounds": timing.summary(ratios)}
    if comm.rank == 0:
        report(found)


def _first_bytes(samples: list[dict[str, Any]]) -> int:
    return sum(int(sample["x"][0]) for sample in samples)
