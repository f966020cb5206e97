"""Recordings of a training that never ran, for reports and comparisons of any size."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from hvprof.format.bins import bin_edges, bin_index, bucket_index
from hvprof.format.layout import (
    COLLECTIVE_CALL,
    CURRENT,
    CURRENT_MAGIC,
    CURRENT_VERSION,
    IN_CALL,
    NO_PEER,
    SLOT,
)
from hvprof.format.writer import write_rank
from hvprof.model import Cell, RankRecording, Region, RegistrationCache, Step

# Bytes of a message and calls of it in a step: ResNet-50's gradients, as Horovod fuses them.
MESSAGES = ((4096, 2), (65_536, 1), (700_000, 3), (8_388_608, 2), (25_165_824, 1), (50_000_000, 1))
_BLOCKS = 32
_START_UNIX_S = 1.7e9


def put_current(directory: Path, number: int, *, changes: int = 2) -> Path:
    """The current calls of a rank that is in its seventh allreduce since 30 s."""
    made = np.zeros(1, CURRENT)
    made["magic"] = np.void(CURRENT_MAGIC)
    made["version"] = CURRENT_VERSION
    slot = np.zeros(1, SLOT)[0]
    slot["changes"], slot["thread"], slot["operation"] = changes, 77, 2
    slot["flags"], slot["peer"] = IN_CALL | COLLECTIVE_CALL, NO_PEER
    slot["since_ns"] = time.monotonic_ns() - 30 * 10**9
    made["slots"][0][0] = slot
    path = directory / f"rank-{number:05d}.now"
    path.write_bytes(made.tobytes())
    return path


def write_job(
    directory: Path,
    ranks: int = 4,
    steps: int = 320,
    *,
    speed: float = 1.0,
    noise: float = 0.02,
    seed: int = 0,
    blocks: bool = True,
    late_rank: int | None = None,
    host: str = "node",
    command: tuple[str, ...] = ("horovodrun", "-np", "4", "python", "train.py"),
    name: str = "allreduce",
) -> Path:
    """Write a recording whose communication takes `speed` times as long, give or take `noise`.

    Args:
        directory: made if it is missing.
        ranks: of the job, 4 to a host.
        steps: of the training.
        speed: factor on the time of every allreduce, and of communication in steps.
        noise: standard deviation of log(time), of the whole run and of each block alike.
        seed: of the noise.
        blocks: whether cells have blocks.
        late_rank: one that arrives 4 ms late in every call.
        host: what host names begin with.
        command: in meta.json.
        name: of the operation that carries the gradients.
    """
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    of_run = float(np.exp(generator.normal(0, noise)))
    for rank in range(ranks):
        cells = [
            _allreduce(
                generator,
                name,
                ranks,
                message_bytes,
                calls * steps,
                speed * of_run * (4e-5 + message_bytes / 2e9),
                0.0 if late_rank in (None, rank) else 0.004,
                noise,
                blocks=blocks,
            )
            for message_bytes, calls in MESSAGES
        ]
        cells += [
            _plain("allreduce", "control", ranks, 16, 20 * steps, 1.1e-3),
            _plain("bcast", "data", ranks, 2_000_000, 161, 9e-4),
            _plain("allgather", "transport", ranks, 512, 6, 2e-4),
        ]
        write_rank(
            directory,
            RankRecording(
                rank=rank,
                size=ranks,
                host=f"{host}{rank // 4:03d}",
                pid=4000 + rank,
                state="finalized",
                start_unix_s=_START_UNIX_S,
                end_unix_s=_START_UNIX_S + steps * 0.31,
                recorder_cost_s=6e-8,
                dropped_calls=0,
                mpi_library="MVAPICH2 Version      :\t2.3.7, made for a test",
                cells=tuple(cells),
                regions=tuple(_regions(steps)),
                steps=tuple(_step(generator, index, 1, speed) for index in range(min(steps, 40))),
                step_count=steps,
                all_steps=_step(generator, steps, steps, speed),
                registration_cache=RegistrationCache("MPI_T mv2_reg_cache", 930, 70),
            ),
        )
    meta = {
        "command": list(command),
        "host": "login",
        "start_unix_s": _START_UNIX_S,
        "duration_s": steps * 0.31 + 4,
        "exit_code": 0,
        "versions": {"python": "3.11.7", "horovod": "0.28.1"},
    }
    (directory / "meta.json").write_text(json.dumps(meta))
    return directory


def _allreduce(
    generator: np.random.Generator,
    name: str,
    ranks: int,
    message_bytes: int,
    calls: int,
    call_s: float,
    wait_s: float,
    noise: float,
    *,
    blocks: bool,
) -> Cell:
    low, high = bin_edges(bin_index(message_bytes))
    # A power of two, as the recorder doubles its blocks when it runs out of them.
    block_calls = 1 << max(0, (-(-calls // _BLOCKS) - 1).bit_length())
    in_block = np.array([min(block_calls, calls - i) for i in range(0, calls, block_calls)])
    times_s = in_block * (call_s * np.exp(generator.normal(0, noise, len(in_block))) + wait_s)
    return Cell(
        operation=name,
        algorithm="native",
        traffic="data",
        source="mpi",
        size=ranks,
        low_bytes=low,
        high_bytes=high,
        calls=calls,
        message_bytes=calls * message_bytes,
        time_s=float(times_s.sum()),
        wait_s=None,
        min_s=call_s * 0.9,
        max_s=(call_s + wait_s) * 3,
        datatype="MPI_FLOAT",
        histogram=_histogram(call_s + wait_s, calls),
        block_calls=block_calls if blocks else 0,
        blocks_s=tuple(float(value) for value in times_s) if blocks else (),
    )


def _histogram(call_s: float, calls: int) -> tuple[tuple[int, int], ...]:
    middle = bucket_index(int(call_s * 1e9))
    shape = np.exp(-(np.arange(-5, 12) ** 2) / 8)
    counts = np.maximum((shape / shape.sum() * calls).astype(int), 1)
    counts[5] += calls - counts.sum()
    return tuple((middle - 5 + place, int(count)) for place, count in enumerate(counts))


def _plain(
    operation: str, traffic: str, ranks: int, message_bytes: int, calls: int, call_s: float
) -> Cell:
    low, high = bin_edges(bin_index(message_bytes))
    return Cell(
        operation=operation,
        algorithm="native",
        traffic=traffic,
        source="mpi",
        size=ranks,
        low_bytes=low,
        high_bytes=high,
        calls=calls,
        message_bytes=calls * message_bytes,
        time_s=calls * call_s,
        wait_s=None,
        min_s=call_s / 2,
        max_s=call_s * 9,
        histogram=((bucket_index(int(call_s * 1e9)), calls),),
    )


def _regions(steps: int) -> list[Region]:
    parts = (("forward", "compute", 0.07), ("backward", "compute", 0.13), ("input", "io", 0.012))
    return [
        Region(name, kind, steps, steps * time_s, time_s / 2, time_s * 2)
        for name, kind, time_s in parts
    ]


def _step(generator: np.random.Generator, index: int, count: int, speed: float) -> Step:
    compute, exposed, hidden, io, other = generator.normal(
        (0.2, 0.081 * speed, 0.054 * speed, 0.012, 0.006), (0.004, 0.003, 0.002, 0.001, 0.0003)
    )
    return Step(
        index=index,
        start_s=0.31 * index if count == 1 else 0.0,
        time_s=count * float(compute + exposed + io + other),
        compute_s=count * float(compute),
        exposed_s=count * float(exposed),
        overlapped_s=count * float(hidden),
        io_s=count * float(io),
        other_s=count * float(other),
    )
