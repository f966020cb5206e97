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
from tests.support.optimizer.sharding import build_same, take_same_steps

hvd.init()
torch.set_num_threads(1)


def main(kind, path):
    model, inner = build_same()
    optimizer = hvd.DistributedOptimizer(inner, sharded=kind == "sharded")
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        take_same_steps(model, optimizer, 6)
        alone, expected = build_same()
        alone.load_state_dict(saved["model"])
        expected.load_state_dict(torch.load(path, weights_only=True)["optimizer"])
        take_same_steps(alone, expected, 6)
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            if hvd.size() in (2, 4):
                assert torch.equal(ours, theirs)
            else:
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    else:
        take_same_steps(model, optimizer, 6)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        hvd.barrier()
        if hvd.rank() == 0:
            torch.save(state, path)
        hvd.barrier()
    print(f"ok {hvd.rank()}", flush=True)


if sys.argv[1] == "on_rank_0":
    model, inner = build_same()
    optimizer = hvd.DistributedOptimizer(inner, sharded=True)
    take_same_steps(model, optimizer, 1)
    if hvd.rank() == 0:
        optimizer.state_dict()
    else:
        import time

        time.sleep(60)
else:
    main(sys.argv[1], Path(sys.argv[2]))
hvd.shutdown()
