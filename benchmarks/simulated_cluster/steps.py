"""A recorded training step on simulated nodes: as hvd_ext exchanges, and as Horovod does.

The recording has when each bucket's gradients were ready. How long an exchange takes is
simulated; that exchanges follow one another is arithmetic.
"""

from __future__ import annotations

import functools
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hvprof
from benchmarks.simulated_cluster.scaling import Simulator
from hvd_ext.errors import UsageError
from hvd_ext.system.process import run_to_end
from hvd_ext.units import KIB, MIB
from hvd_launch.simulate.cases import Situation
from hvd_launch.simulate.platform import Platform
from hvprof.analysis.replay.timeline import RankStep, steps_of
from testbed import ranks

RANKS_PER_NODE = 4
_MOST_NODES = 512
_SIZES = (4 * KIB, 32 * KIB, 256 * KIB, 2 * MIB, 16 * MIB, 128 * MIB)
# Horovod 0.28's defaults, and Open MPI's choice of algorithms, which most sites have.
_FUSION_BYTES, _CYCLE_S, _SELECTOR = 128 * MIB, 1e-3, "ompi"
_TRACED = 100_000
_TIMEOUT_S = 3600.0
# Seconds of one exchange of so many bytes.
Exchange = Callable[[float], float]


@dataclass(frozen=True)
class Workload:
    """A recording on 2 ranks of this machine, and the step of a GPU that its times are scaled to.

    Attributes:
        arguments: of Python; `{folder}` becomes a folder for what the trainer writes.
        images: of a rank's step.
        step_s: of one rank that exchanges nothing.
    """

    arguments: tuple[str, ...]
    images: int
    step_s: float


# One V100 trains EDSR at 10.3 images/s and ResNet-50 at 360 (Anthony et al., 2021,
# doi 10.1109/IPDPSW52791.2021.00143).
_EDSR = ("-m", "edsr.train", "--synthetic", "--preset", "full", "--patch", "12")
_RESNET = ("-m", "resnet.train", "--synthetic", "--batch-size", "2", "--image-size", "64")
WORKLOADS = {
    "edsr": Workload(
        (*_EDSR, "--batch-size", "1", "--steps", "12", "--output", "{folder}"), 4, 4 / 10.3
    ),
    "resnet50": Workload((*_RESNET, "--num-iters", "3"), 64, 64 / 360),
}


@dataclass(frozen=True)
class Step:
    """One rank's step.

    Attributes:
        compute_s: without any exchange.
        buckets: seconds of compute after which a bucket is ready, and its bytes.
    """

    compute_s: float
    buckets: tuple[tuple[float, int], ...]

    def scaled(self, compute_s: float) -> Step:
        """The same on a machine that takes `compute_s`."""
        factor = compute_s / self.compute_s
        buckets = tuple((factor * ready_s, size) for ready_s, size in self.buckets)
        return Step(compute_s, buckets)


def steps(simulator: Simulator, folder: Path, hosts: Sequence[int]) -> dict[str, Any]:
    """Images a second and efficiency of both workloads, by nodes."""
    counts = sorted({1, *(count for count in hosts if count <= _MOST_NODES)})
    jobs: list[Callable[[], object]] = []
    for count in counts:
        between, flat = _situations(count)
        if count > 1:
            jobs += [functools.partial(simulator.best_s, between, size) for size in _SIZES]
        jobs.append(functools.partial(simulator.theirs_s, flat, _SELECTOR, _SIZES[0], _SIZES))
    simulator.together(jobs, "steps")
    found = []
    for name, workload in WORKLOADS.items():
        step = recorded_step(_record(name, workload, folder)).scaled(workload.step_s)
        for count in counts:
            ours_s = own_step_s(step, _hvd_ext(simulator, count))
            theirs_s = horovod_step_s(step, _horovod(simulator, count))
            found.append(_row(name, workload, count, ours_s, theirs_s))
    return {"steps": found}


def _row(
    name: str, workload: Workload, nodes: int, ours_s: float, theirs_s: float
) -> dict[str, Any]:
    images = nodes * RANKS_PER_NODE * workload.images
    return {
        "model": name,
        "nodes": nodes,
        "ranks": nodes * RANKS_PER_NODE,
        "hvd_ext_images_s": images / ours_s,
        "horovod_images_s": images / theirs_s,
        "hvd_ext_efficiency": workload.step_s / ours_s,
        "horovod_efficiency": workload.step_s / theirs_s,
    }


def recorded_step(folder: Path) -> Step:
    """The step of median length of rank 0.

    Raises:
        UsageError: the recording has no trace of whole steps.
    """
    trace = hvprof.load_trace(hvprof.load(folder))
    if trace is None:
        raise UsageError(f"{folder}: has no trace: record with --trace")
    every = [step[0] for step in steps_of(trace)]
    every.sort(key=lambda one: one.end_s - one.begin_s)
    return _without_exchanges(every[len(every) // 2])


def _without_exchanges(step: RankStep) -> Step:
    """Times that the training thread was blocked are left out of a step."""

    def compute_s(until_s: float) -> float:
        blocked = sum(max(0.0, min(one.end_s, until_s) - one.begin_s) for one in step.blocked)
        return until_s - step.begin_s - blocked

    buckets = [
        (compute_s(one.begin_s if one.ready_s is None else one.ready_s), one.message_bytes)
        for one in step.exchanges
    ]
    return Step(compute_s(step.end_s), tuple(sorted(buckets)))


def own_step_s(step: Step, exchange: Exchange) -> float:
    """A step whose buckets are exchanged one after the other, each as soon as it is ready."""
    free_s = last_s = 0.0
    for last_s, size in step.buckets:
        free_s = max(free_s, last_s) + exchange(size)
    return step.compute_s + max(0.0, free_s - last_s)


def horovod_step_s(step: Step, exchange: Exchange) -> float:
    """A step whose gradients are exchanged in cycles: what is ready is fused, and agreed on."""
    waiting, now_s, last_s = list(step.buckets), 0.0, 0.0
    while waiting:
        last_s = max(last_s, waiting[-1][0])
        now_s = _CYCLE_S * np.ceil(max(now_s + _CYCLE_S, waiting[0][0]) / _CYCLE_S)
        ready = 0
        for ready_s, size in list(waiting):
            if ready_s > now_s or (ready and ready + size > _FUSION_BYTES):
                break
            ready += size
            waiting.pop(0)
        # Ranks agree on what is ready by short messages.
        now_s += exchange(_SIZES[0]) + exchange(ready)
    return step.compute_s + max(0.0, float(now_s) - last_s)


def _situations(nodes: int) -> tuple[Situation, Situation]:
    return Situation(nodes, 1, RANKS_PER_NODE), Situation(nodes, RANKS_PER_NODE, 1)


def _hvd_ext(simulator: Simulator, nodes: int) -> Exchange:
    """Within the nodes through shared memory, each rank's shard between them by the table."""
    between, _ = _situations(nodes)
    known = [simulator.best_s(between, size)[1] for size in _SIZES] if nodes > 1 else []

    def exchange(message_bytes: float) -> float:
        within_s = _node_s(simulator.platform, message_bytes)
        shard = message_bytes / RANKS_PER_NODE
        return within_s + (_interpolated(shard, known) if known else 0.0)

    return exchange


def _horovod(simulator: Simulator, nodes: int) -> Exchange:
    _, flat = _situations(nodes)
    known = [simulator.theirs_s(flat, _SELECTOR, size, _SIZES) for size in _SIZES]
    return lambda message_bytes: _interpolated(message_bytes, known)


def _node_s(platform: Platform, message_bytes: float) -> float:
    """2 (k-1) a + (k-1)/k n (2 b + g), as docs/allreduce.md has it for shared_memory."""
    others = RANKS_PER_NODE - 1
    byte_s = 2e-9 / platform.memory_gbyte_s + 1e-9 * platform.combine_ns
    return (
        2e-6 * others * platform.memory_latency_us
        + others / RANKS_PER_NODE * message_bytes * byte_s
    )


def _interpolated(message_bytes: float, known_s: Sequence[float]) -> float:
    """Between sizes, and beyond the longest in proportion to the bytes."""
    longest = _SIZES[-1]
    if message_bytes > longest:
        return known_s[-1] * message_bytes / longest
    times = np.interp(np.log(max(message_bytes, 1)), np.log(_SIZES), np.log(known_s))
    return float(np.exp(times))


def _record(name: str, workload: Workload, folder: Path) -> Path:
    """Train on 2 ranks of this machine, and record it; once."""
    recording = folder / name
    if recording.exists():
        return recording
    draft = folder / f"{name}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    words = [word.format(folder=folder / f"{name}.output") for word in workload.arguments]
    command = [sys.executable, "-m", "hvprof", "record", "--trace", str(_TRACED), "-o", str(draft)]
    command += ["--", *ranks.hvd_launch(2), sys.executable, *words]
    done = run_to_end(command, ranks.environment(ranks.sharing_cores(2)), _TIMEOUT_S)
    if done.returncode != 0:
        raise ranks.JobError(f"{name} could not be recorded:\n{ranks.last_lines(done.stdout)}")
    draft.rename(recording)
    return recording


def gained(rows: Sequence[dict[str, Any]]) -> float:
    """How many times as fast hvd_ext is as Horovod, a median over the rows."""
    return statistics.median(row["hvd_ext_images_s"] / row["horovod_images_s"] for row in rows)
