"""Spatial layers on GPUs: right, and how long exchanges take beside copies of as many bytes.

Arguments: a device (cuda, or cpu to try the program itself), and a file for the times, if wanted.
Each rank's GPU is that of its number, or one that it shares.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from mpi4py import MPI
from torch import nn

from hvd_ext import spatial
from hvd_ext.spatial.exchange.device.communicator import DeviceCommunicator

COMM = MPI.COMM_WORLD
KIND = sys.argv[1]
DEVICE = torch.device(KIND)
if KIND == "cuda":
    DEVICE = torch.device("cuda", COMM.rank % torch.cuda.device_count())
    torch.cuda.set_device(DEVICE)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
ROUNDS, TIMES = 20, 5
# (N, C, *shard) and the width of the halo along its first dim: of the mesh model at 2048 x 2048
# and of CosmoFlow at 256^3, by two ranks.
FACES = {
    "mesh 1": ((1, 18, 1024, 2048), 2),
    "mesh 2": ((1, 128, 512, 1024), 1),
    "mesh 3": ((1, 160, 256, 512), 1),
    "cosmoflow 1": ((1, 4, 128, 256, 256), 1),
    "cosmoflow 2": ((1, 16, 64, 128, 128), 1),
    "cosmoflow 3": ((1, 32, 32, 64, 64), 1),
}


def flat_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 5, padding=2, stride=2),
        nn.ConvTranspose2d(6, 2, 4, stride=2, padding=1),
    )


def solid_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv3d(6, 3, 3, stride=2)
    )


def trained(model: nn.Module, whole: torch.Tensor, grid: spatial.ProcessGrid | None) -> nn.Module:
    """The model after three steps in double precision, on one rank or split."""
    model = copy.deepcopy(model)
    model = model if grid is None else spatial.convert(model, grid)
    learner = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        learner.zero_grad()
        model(whole if grid is None else spatial.scatter(whole, grid)).square().mean().backward()
        for parameter in model.parameters():
            if grid is not None and parameter.grad is not None:
                parameter.grad = grid.space.allreduce(parameter.grad) / grid.space.size
        learner.step()
    return model


def check(make: Callable[[], nn.Module], shape: tuple[int, ...], axes: dict[str, int]) -> None:
    torch.manual_seed(5)
    model, whole = make().double().to(DEVICE), torch.randn(shape).double().to(DEVICE)
    grid = spatial.ProcessGrid(**axes)
    split, expected = trained(model, whole, grid), trained(model, whole, None)
    for (name, one), other in zip(
        split.state_dict().items(), expected.state_dict().values(), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-11), (axes, name)
    if COMM.rank == 0:
        print(f"right on {grid.shape}\n{grid.explain()}", flush=True)


def best_ms(run: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(TIMES):
        COMM.Barrier()
        begun_s = time.perf_counter()
        for _ in range(ROUNDS):
            run()
        if KIND == "cuda":
            torch.cuda.synchronize()
        best = min(best, 1e3 * (time.perf_counter() - begun_s) / ROUNDS)
    return best


def measure(comm: DeviceCommunicator) -> dict[str, dict[str, float]]:
    """Of each exchange with the next and the last rank, and of a copy of what is sent."""
    found = {}
    near = [rank for rank in (comm.rank - 1, comm.rank + 1) if 0 <= rank < comm.size]
    for name, (shape, width) in FACES.items():
        if KIND == "cpu":
            shape = (*shape[:2], *(n // 32 for n in shape[2:]))
        block = torch.randn(shape, device=DEVICE)
        first, last = block[:, :, :width], block[:, :, -width:]
        sends = [(rank, [first if rank < comm.rank else last]) for rank in near]
        into = [(rank, block.new_empty(first.numel())) for rank in near]
        sent = torch.cat([piece.reshape(-1) for _, (piece,) in sends])

        def exchange(sends=sends, into=into, block=block) -> None:  # type: ignore[no-untyped-def]
            comm.start(sends, into, block)()

        exchange()
        times = best_ms(exchange), best_ms(sent.clone)
        slowest = COMM.allreduce(times[0], MPI.MAX), COMM.allreduce(times[1], MPI.MAX)
        found[name] = dict(zip(("exchange_ms", "copy_ms"), slowest, strict=True))
        found[name]["sent_bytes"] = sent.nbytes
    return found


size = COMM.size
check(flat_model, (2, 3, 32, 40), {"height": size})
check(flat_model, (2, 3, 32, 40), {"width": size})
check(solid_model, (1, 2, 16, 14, 18), {"depth": size})
if size == 4:
    check(flat_model, (2, 3, 32, 40), {"height": 2, "width": 2})
    check(solid_model, (1, 2, 16, 14, 18), {"depth": 2, "width": 2})
communicator = DeviceCommunicator(COMM)
times = measure(communicator)
if COMM.rank == 0:
    print(json.dumps(times, indent=2), flush=True)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps({"direct": communicator.is_direct, "halos": times}))
assert communicator.is_direct == (KIND == "cuda"), "halos went through the host's memory"
print(f"ok {COMM.rank}", flush=True)
