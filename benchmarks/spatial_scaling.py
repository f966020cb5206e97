"""What does it gain to share one sample among ranks? Time and memory of training steps.

Each case is a network trained on one sample, by ranks of one thread each. Efficiency is
the step of one rank alone over n times the step of n ranks that share the sample; both
are timed in one run, in turns, after their losses were seen to agree. `busy` is the same
with all ranks working on samples of their own in place of one alone: what it lies above
the efficiency is what ranks take from each other as it is (caches, memory, clock speed).

Memory is the peak of a fresh process over what it held with model, gradients and
optimizer in place, which every rank has whole; `..._with_parameters` is over what it held
before those.

torch's DTensor splits convolutions along the width, for a stride of 1. It takes part
where it can do the case and gets it right; where not, the JSON says what it said. The
last two columns of the table say how many times as long those take.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import harness
from hvd_ext.cli import at_least
from hvd_ext.units import format_bytes
from testbed import ranks, timing

_MODULE = "benchmarks.spatial_scaling"
# Freed tensors go back to the system at once, so that the peak is of what is held; by
# default glibc keeps blocks of up to 32 MiB, which splitting makes of larger ones.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
CASES = ("mesh", "cosmoflow", "convolutions")


def main(arguments: Sequence[str]) -> int:
    """Launch the ranks, or be one."""
    parser = harness.parser("spatial_scaling", __doc__, "--case mesh --json F", rounds=5)
    parser.add_argument("--np", type=at_least(1), default=2, help="ranks that share a sample (2)")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        (case,) = options.case
        harness_report(_memory(case) if options.memory else _times(case, options.rounds))
        return 0
    results = [_case(name, options.np, options.rounds) for name in options.case or CASES]
    _print(results)
    if options.json:
        harness.write_result(options.json, {"size": options.np, "cases": results})
    return 0


def harness_report(result: Any) -> None:
    """Hand the result over, on rank 0, and end."""
    import hvd_ext.torch as hvd

    if hvd.rank() == 0:
        ranks.report(result)
    hvd.shutdown()


def _case(name: str, size: int, rounds: int) -> dict[str, Any]:
    arguments = ["--case", name, "--rounds", str(rounds)]
    timed = ranks.launch(_MODULE, size, arguments, timeout_s=3000)
    alone, shared = (
        ranks.launch(_MODULE, number, [*arguments, "--memory"], timeout_s=600, variables=_MALLOC)
        for number in (1, size)
    )
    samples = timed.pop("samples_s")
    split = samples["split"]
    result = {
        "name": name,
        "ranks": size,
        **timed,
        "time_s": {way: timing.summary(times) for way, times in samples.items()},
        "efficiency": timing.ratio(samples["alone"], split) / size,
        "efficiency_spread": sorted(
            one / two / size for one, two in zip(samples["alone"], split, strict=True)
        ),
        "efficiency_busy": timing.ratio(samples["busy"], split) / size,
        "ratio_vs_no_overlap": timing.ratio(samples["no_overlap"], split),
        "peak_memory_bytes": {"alone": alone["peak"], "split": shared["peak"]},
        "peak_memory_ratio": shared["peak"] / alone["peak"],
        "peak_memory_ratio_with_parameters": shared["whole_peak"] / alone["whole_peak"],
    }
    if "dtensor" in samples:
        result["ratio_vs_dtensor"] = timing.ratio(samples["dtensor"], split)
    return result


def _print(results: list[dict[str, Any]]) -> None:
    table = Table(title="one sample, shared by ranks of one thread each")
    columns = ("case", "ranks", "alone s", "shared s", "efficiency", "busy", "peak memory")
    for column in (*columns, "no overlap", "DTensor"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for result in results:
        peak = result["peak_memory_bytes"]
        dtensor = result.get("ratio_vs_dtensor")
        table.add_row(
            result["name"],
            str(result["ranks"]),
            f"{result['time_s']['alone']['median']:.3f}",
            f"{result['time_s']['split']['median']:.3f}",
            f"{result['efficiency']:.3f}",
            f"{result['efficiency_busy']:.3f}",
            f"{result['peak_memory_ratio']:.2f} x {format_bytes(peak['alone'])}",
            f"{result['ratio_vs_no_overlap']:.2f} x",
            f"{dtensor:.2f} x" if dtensor else "cannot",
        )
    Console().print(table)


class _Work:
    """A case on this rank: network, loss, and a step for each way to train it."""

    def __init__(self, name: str, comm: Any) -> None:
        import torch
        from torch import nn

        from cosmoflow.model import CosmoFlow
        from mesh.model import Architecture, MeshModel

        torch.set_num_threads(1)
        self.comm = comm
        # The published 1K mesh model, with a quarter of its channels.
        mesh = Architecture(
            ((32, 64, 64, 64, 64), *((width,) * 5 for width in (96, 128, 96, 96, 32))),
            (2, 2, 2, 2, 2, 1),
        )
        self.make: Callable[[], Any]
        self.small: Callable[[], Any]
        self.make, self.shape, self.target_shape, self.axis = {
            "mesh": (lambda: MeshModel(mesh), (1, 18, 1024, 1024), (1, 1, 1024, 1024), "height"),
            "cosmoflow": (lambda: CosmoFlow(64), (1, 4, 64, 64, 64), (1, 4), "depth"),
            "convolutions": (
                lambda: nn.Sequential(
                    nn.Conv2d(16, 32, 3, padding=1),
                    *(nn.Conv2d(32, 32, 3, padding=1) for _ in range(6)),
                ),
                (1, 16, 512, 512),
                (1, 32, 512, 512),
                "width",
            ),
        }[name]
        # Something that runs the same kernels on little memory.
        self.small, self.small_shape = {
            "mesh": (self.make, (2, 18, 64, 64)),
            "cosmoflow": (lambda: CosmoFlow(32, thin=8), (2, 4, 32, 32, 32)),
            "convolutions": (self.make, (2, 16, 32, 32)),
        }[name]

    def grid(self) -> Any:
        """All ranks along the case's axis."""
        from hvd_ext import spatial

        counts: dict[str, Any] = {self.axis: self.comm.size}
        return spatial.ProcessGrid(**counts, comm=self.comm)

    def model(self) -> Any:
        """The network, the same on every rank; dropout would make losses incomparable."""
        import torch

        torch.manual_seed(1)
        model = self.make()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return model

    def sample(self) -> tuple[Any, Any]:
        """Input and target, whole."""
        import torch

        generator = torch.Generator().manual_seed(2)
        x, y = (torch.rand(s, generator=generator) for s in (self.shape, self.target_shape))
        return x, y

    def alone(self) -> Callable[[], float]:
        """A training step on the whole sample."""
        import torch

        model, (x, y) = self.model(), self.sample()
        return _step(model, torch.optim.SGD(model.parameters(), lr=1e-3), x, y)

    def split(self, *, overlap: bool) -> Callable[[], float]:
        """A training step on this rank's block."""
        import torch

        import hvd_ext.torch as hvd
        from hvd_ext import spatial

        grid = self.grid()
        grid.overlap = overlap
        model = spatial.convert(self.model(), grid)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1e-3),
            named_parameters=model.named_parameters(),
        )
        x, y = self.sample()
        blocks = spatial.scatter(x, grid), spatial.scatter(y, grid) if y.dim() > 2 else y
        return _step(model, optimizer, *blocks)

    def dtensor(self) -> Callable[[], float]:
        """A training step with torch's own tensors that are split along the width."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import (
            DTensor,
            Replicate,
            Shard,
            distribute_module,
            distribute_tensor,
        )

        mesh = init_device_mesh("cpu", (self.comm.size,))
        model = distribute_module(self.model(), mesh)
        x, y = (distribute_tensor(t, mesh, [Shard(t.dim() - 1)]) for t in self.sample())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)

        def step() -> float:
            optimizer.zero_grad()
            loss: Any = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            for parameter in model.parameters():
                if isinstance(parameter.grad, DTensor):
                    parameter.grad = parameter.grad.redistribute(placements=[Replicate()])
            optimizer.step()
            return float(loss.full_tensor().detach())

        return step


def _step(model: Any, optimizer: Any, x: Any, y: Any) -> Callable[[], float]:
    import torch

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _times(name: str, rounds: int) -> dict[str, Any]:
    import hvd_ext.torch as hvd

    hvd.init()
    # Importing this starts MPI, which is for init to do: it has something to set before.
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    _start_gloo(comm)
    work = _Work(name, comm)
    steps: dict[str, Callable[[], Any]] = {
        "alone": work.alone(),
        "busy": work.alone(),
        "split": work.split(overlap=True),
        "no_overlap": work.split(overlap=False),
    }
    # Three steps, for what a wrong gradient spoils is only the next one's loss.
    expected = [steps["alone"]() for _ in range(3)]
    for way in ("busy", "split", "no_overlap"):
        _check(way, [steps[way]() for _ in range(3)], expected)
    said = ""
    try:
        step = work.dtensor()
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
        if step is not steps["alone"] or comm.rank == 0:
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
    """Wait for all ranks without taking the processor from those that still work."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.0002)


def _start_gloo(comm: Any) -> None:
    import torch

    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size
    )


def _memory(name: str) -> dict[str, Any]:
    """Peak of two training steps; on one rank of the ordinary model."""
    import torch
    from mpi4py import MPI

    import hvd_ext.torch as hvd
    from hvd_ext import spatial

    hvd.init()
    comm = MPI.COMM_WORLD
    work = _Work(name, comm)
    # The libraries' code comes into memory as it is first used.
    small: Any = work.small()
    block: Any = torch.rand(work.small_shape)
    if comm.size > 1:
        grid = work.grid()
        # MPI's buffers, too.
        small, block = spatial.convert(small, grid), spatial.scatter(block, grid)
    small(block).sum().backward()
    del small, block
    empty = _held_bytes()
    model = work.model()
    if comm.size > 1:
        model = spatial.convert(model, grid)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3), named_parameters=model.named_parameters()
    )
    # Everything that a step needs besides the sample is in place after one without.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    ready = _held_bytes()
    blocks = [torch.rand(shape) for shape in (work.shape, work.target_shape)]
    if comm.size > 1:
        blocks = [_block(spatial, shape, grid) for shape in (work.shape, work.target_shape)]
    step = _step(model, optimizer, *blocks)
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


if __name__ == "__main__":
    harness.run(main, "spatial_scaling")
