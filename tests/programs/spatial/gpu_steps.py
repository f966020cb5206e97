"""Steps of the mesh model and of CosmoFlow, split over ranks: right, and what the host waits.

Arguments: a device (cuda, or cpu to try the program itself with small models), and a file for the
results, if wanted. Each rank's GPU is that of its number, or one that it shares.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from mpi4py import MPI
from torch import Tensor, nn

from cosmoflow.model import CosmoFlow
from hvd_ext import spatial
from hvd_ext.spatial.exchange.communicator import Communicator, Receive, Send
from hvd_ext.spatial.exchange.device.communicator import DeviceCommunicator
from mesh.model import PRESETS, Architecture, MeshModel

COMM = MPI.COMM_WORLD
KIND = sys.argv[1]
DEVICE = torch.device(KIND)
if KIND == "cuda":
    DEVICE = torch.device("cuda", COMM.rank % torch.cuda.device_count())
    torch.cuda.set_device(DEVICE)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
STEPS = 3
# How much more than the unsplit model's noise, which is that of the rounding of its input alone,
# gradients may differ: every layer rounds.
TIMES_NOISE = 30


class Clocked:
    """A communicator, and how long the host was in its calls: no less than it was blocked."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.inside_s = 0.0

    def _timed(self, call: Callable[[], object]) -> object:
        begun_s = time.perf_counter()
        try:
            return call()
        finally:
            self.inside_s += time.perf_counter() - begun_s

    def start(
        self, sends: Sequence[Send], receives: Sequence[Receive], like: Tensor
    ) -> Callable[[], None]:
        finish = self._timed(lambda: self.comm.start(sends, receives, like))
        return lambda: self._timed(finish)  # type: ignore[arg-type,return-value]

    def allreduce(self, tensor: Tensor) -> Tensor:
        return self._timed(lambda: self.comm.allreduce(tensor))  # type: ignore[return-value]

    def group(self, members: Sequence[int]) -> Clocked:
        return Clocked(self.comm.group(members))


def models() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]]:
    """Makers, shapes of one sample, and the axis to split."""
    if KIND == "cuda":
        side, architecture = PRESETS["2k"]
        width, thin = 256, 1
    else:
        side, architecture = 64, Architecture(((6, 8), (8, 10)), (2, 2))
        width, thin = 32, 8
    return {
        f"mesh {side}x{side}": (
            *(lambda: MeshModel(architecture), (1, 18, side, side)),
            "height",
        ),
        f"CosmoFlow {width}^3": (
            # Dropout would draw other numbers on each rank.
            *(lambda: CosmoFlow(width, thin=thin).eval(), (1, 4, width, width, width)),
            "depth",
        ),
    }


def wait() -> None:
    if KIND == "cuda":
        torch.cuda.synchronize()


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def worst(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Largest difference, relative to the largest gradient of its parameter."""
    return max(
        ((mine.cpu() - true).abs().max() / true.abs().max().clamp(min=1e-30)).item()
        for mine, true in zip(found, expected, strict=True)
    )


def measure(make: Callable[[], nn.Module], shape: tuple[int, ...], axis: str) -> dict[str, float]:
    """Error of the gradients, step, host's share of it in exchanges, and memory, of all ranks."""
    torch.manual_seed(5)
    model, whole = make().to(DEVICE), torch.randn(shape)
    grid = spatial.ProcessGrid(**{axis: COMM.size}, comm=Clocked(DeviceCommunicator(COMM)))
    assert isinstance(grid.space, Clocked)
    assert isinstance(grid.space.comm, DeviceCommunicator)
    expected: list[Tensor] = []
    noise = 0.0
    if COMM.rank == 0:
        expected = [g.cpu() for g in gradients(model, whole.to(DEVICE))]
        rounded = whole * (1 + 2.0**-23 * torch.randn_like(whole).sign())
        noise = worst(gradients(model, rounded.to(DEVICE)), expected)
        if KIND == "cuda":
            torch.cuda.empty_cache()
    COMM.Barrier()
    spatial.convert(model, grid)
    x = spatial.scatter(whole.to(DEVICE), grid)
    found = [grid.space.allreduce(g) / COMM.size for g in gradients(model, x)]
    error, noise = COMM.bcast((worst(found, expected) if expected else 0.0, noise))
    assert error <= TIMES_NOISE * noise, f"gradients differ by {error:.1e}, noise {noise:.1e}"
    del found, expected
    model.zero_grad()
    if KIND == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps = []
    for _ in range(STEPS):
        wait()
        COMM.Barrier()
        grid.space.inside_s, begun_s = 0.0, time.perf_counter()
        gradients(model, x)
        inside_s = grid.space.inside_s
        wait()
        steps.append((time.perf_counter() - begun_s, inside_s))
    step_s, inside_s = min(steps)
    memory = torch.cuda.max_memory_allocated() if KIND == "cuda" else 0
    if COMM.rank == 0:
        print(grid.explain(), flush=True)
    return {
        "error": error,
        "noise": noise,
        "step_ms": 1e3 * COMM.allreduce(step_s, MPI.MAX),
        "host_share": COMM.allreduce(inside_s / step_s, MPI.MAX),
        "memory_bytes": COMM.allreduce(memory, MPI.MAX),
        "direct": COMM.allreduce(grid.space.comm.is_direct, MPI.LAND),
    }


results = {name: measure(*given) for name, given in models().items()}
if COMM.rank == 0:
    print(json.dumps(results, indent=2), flush=True)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(results))
assert all(found["direct"] == (KIND == "cuda") for found in results.values()), "through the host"
print(f"ok {COMM.rank}", flush=True)
