"""Trains on the GPU with hvd_ext's optimizer and with Horovod's, from the same weights.

Argument "off": with HVD_EXT_DEVICE_ARENA=0 both are Horovod's.
"""

from __future__ import annotations

import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # or matrix products vary in their last bit

import horovod.torch as horovod
import torch

import hvd_ext.torch as hvd

STEPS = 6
hvd.init()
rank, size = hvd.rank(), hvd.size()
torch.use_deterministic_algorithms(True)
torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())


def horovods_place() -> str:
    """Where Horovod reduces as it was built here."""
    try:
        horovod.allreduce(torch.ones(1, device="cuda"), name="probe")
    except Exception as error:
        if rank == 0:
            print(f"Horovod takes no tensors on a GPU ({error}): compared with it on the CPU")
        return "cpu"
    return "cuda"


def train(module, place: str, dtype: torch.dtype, passes: int, set_to_none: bool):
    torch.manual_seed(7)
    layers = [torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256)]
    model = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(256, 1))
    model.seldom = torch.nn.Parameter(torch.ones(1))
    model.to(place, dtype)
    optimizer = module.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        model.named_parameters(),
        backward_passes_per_step=passes,
    )
    generator = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        model.zero_grad(set_to_none)
        for _ in range(passes):
            x = torch.randn(32, 64, generator=generator).to(place, dtype)
            y = model(x)
            if rank > 0 or step % 2 == 0:  # else this parameter has no gradient
                y = y * model.seldom
            y.float().square().mean().backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    return model, optimizer


def main() -> None:
    if "off" in sys.argv:
        _, optimizer = train(hvd, "cuda", torch.float32, 1, True)
        assert not hasattr(optimizer, "explain")
        print(f"ok {rank}", flush=True)
        return
    place = horovods_place()
    # Horovod sums in an order of its own from 3 ranks on.
    exact = size <= 2 and place == "cuda"
    for passes in (1, 2):
        for set_to_none in (True, False):
            ours, optimizer = train(hvd, "cuda", torch.float32, passes, set_to_none)
            if size > 1:
                assert "CUDA IPC" in optimizer.explain(), optimizer.explain()
            theirs, _ = train(horovod, place, torch.float32, passes, set_to_none)
            compare(ours, theirs, 0.0 if exact else 1e-4)
            short, _ = train(hvd, "cuda", torch.bfloat16, passes, set_to_none)
            compare(short, ours, 3e-2)
    hvd.shutdown()
    print(f"ok {rank}", flush=True)


def compare(ours, theirs, tolerance: float) -> None:
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(
            a.float().cpu(), b.float().cpu(), rtol=tolerance, atol=tolerance, msg=name
        )
    mine = torch.cat([p.detach().float().cpu().view(-1) for p in ours.parameters()])
    digests = hvd.allgather_object(mine.numpy().tobytes())
    assert len(set(digests)) == 1, "ranks hold different weights"


main()
