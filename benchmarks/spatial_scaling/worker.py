"""A rank of benchmarks.spatial_scaling: times training steps, or finds their peak memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import gloo
from benchmarks.spatial_scaling.cases import Case, training_step
from testbed import timing


def step_times(name: str, rounds: int) -> dict[str, Any]:
    """Seconds of each way to train the case, interleaved, once their losses agree."""
    import hvd_ext.torch as hvd

    hvd.init()
    # Importing this starts MPI, which is for init to do: it has something to set before.
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    gloo.start(comm)
    case = Case(name, comm)
    steps: dict[str, Callable[[], Any]] = {
        "alone": case.alone(),
        "converted": case.converted(MPI.COMM_SELF),
        "busy": case.alone(),
        "split": case.split(overlap=True),
        "no_overlap": case.split(overlap=False),
    }
    # Three steps, for what a wrong gradient spoils is only the next one's loss.
    expected = [steps["alone"]() for _ in range(3)]
    for way in ("converted", "busy", "split", "no_overlap"):
        _check(way, [steps[way]() for _ in range(3)], expected)
    said = ""
    try:
        step = case.dtensor()
        _check("DTensor", [step() for _ in range(3)], expected)
        steps["dtensor"] = step
    # Whatever it says, it says in place of a figure.
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
    able = comm.allgather(not said)
    if not all(able):
        steps.pop("dtensor", None)

    def timed(step: Callable[[], Any]) -> float:
        _meet(comm)
        began = time.perf_counter()
        if comm.rank == 0 or step not in (steps["alone"], steps["converted"]):
            step()
        took_s = time.perf_counter() - began
        _meet(comm)
        return float(comm.allreduce(took_s, MPI.MAX))

    samples = timing.interleave(steps, rounds, timed, warm_up=1)
    result: dict[str, Any] = {"samples_s": samples}
    if said:
        result["dtensor_said"] = said
    return result


def _check(way: str, losses: list[float], expected: list[float]) -> None:
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
    if not worst < 1e-3:
        raise harness.BenchmarkError(f"{way}: losses are {losses}, and should be {expected}")


def _meet(comm: Any) -> None:
    """Wait for all ranks without taking the core from those that still compute."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.0002)


def peak_memory(name: str) -> dict[str, Any]:
    """Peak of two training steps; on one rank of the ordinary model."""
    import torch
    from mpi4py import MPI

    import hvd_ext.torch as hvd
    from hvd_ext import spatial

    hvd.init()
    comm = MPI.COMM_WORLD
    case = Case(name, comm)
    # The libraries' code comes into memory as it is first used.
    small: Any = case.small()
    block: Any = torch.rand(case.small_shape)
    if comm.size > 1:
        grid = case.grid()
        # MPI's buffers, too.
        small, block = spatial.convert(small, grid), spatial.scatter(block, grid)
    small(block).sum().backward()
    # The first optimizer loads torch's compiler.
    torch.optim.SGD(small.parameters(), lr=1e-3).step()
    del small, block
    empty = _held_bytes()
    model = case.model()
    if comm.size > 1:
        model = spatial.convert(model, grid, **case.splits)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3), named_parameters=model.named_parameters()
    )
    # Everything that a step needs besides the sample is in place after one without.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    ready = _held_bytes()
    blocks = [torch.rand(shape) for shape in (case.shape, case.target_shape)]
    if comm.size > 1:
        blocks = [_block(spatial, shape, grid) for shape in (case.shape, case.target_shape)]
    step = training_step(model, optimizer, *blocks)
    for _ in range(2):
        step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peaks = comm.allgather((peak - ready, peak - empty))
    return {"peak": max(p for p, _ in peaks), "whole_peak": max(p for _, p in peaks)}


def _block(spatial: Any, shape: tuple[int, ...], grid: Any) -> Any:
    """This rank's block of random numbers; no rank ever has the whole."""
    import torch

    if len(shape) <= 2:
        return torch.rand(shape)
    meta = spatial.scatter(torch.empty(shape, device="meta"), grid)
    return spatial.SpatialTensor(torch.rand(meta.local.shape), grid, shape[2:])


def _held_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
