"""Checkpoints of a sharded optimizer.

Arguments: on_rank_0, which asks one rank alone for the state; or sharded | unsharded, and a
file. Without the file, some steps are taken and it is written; with it, steps that start from
it must be those of one process on the same gradients: to the bit, where averaging equal
gradients is exact.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import hvd_ext.torch as hvd

hvd.init()
torch.set_num_threads(1)


def build():
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(37, 301), torch.nn.Tanh(), torch.nn.Linear(301, 3))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)


def take_steps(model, optimizer, count):
    """The same gradients on every rank: the average is each of them, whatever their number."""
    for seed in range(count):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(seed)
        model(torch.randn(4, 37, generator=generator)).square().mean().backward()
        optimizer.step()


def main(kind, path):
    model, inner = build()
    optimizer = hvd.DistributedOptimizer(inner, sharded=kind == "sharded")
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        take_steps(model, optimizer, 6)
        alone, expected = build()
        alone.load_state_dict(saved["model"])
        expected.load_state_dict(torch.load(path, weights_only=True)["optimizer"])
        take_steps(alone, expected, 6)
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            if hvd.size() in (2, 4):
                assert torch.equal(ours, theirs)
            else:
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    else:
        take_steps(model, optimizer, 6)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        hvd.barrier()
        if hvd.rank() == 0:
            torch.save(state, path)
        hvd.barrier()
    print(f"ok {hvd.rank()}", flush=True)


if sys.argv[1] == "on_rank_0":
    model, inner = build()
    optimizer = hvd.DistributedOptimizer(inner, sharded=True)
    take_steps(model, optimizer, 1)
    if hvd.rank() == 0:
        optimizer.state_dict()
    else:
        import time

        time.sleep(60)
else:
    main(sys.argv[1], Path(sys.argv[2]))
hvd.shutdown()
