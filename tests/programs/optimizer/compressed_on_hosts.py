"""Weights have the same bits on all ranks after every step, and in a second run.

`compressed_on_hosts.py CODEC FORMATS...`: every second host codes as another kind of CPU would,
by that library.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys

import torch
from mpi4py import MPI

import hvd_ext.torch as hvd
from hvd_ext.compression import codec, powersgd
from tests.support.optimizer.learning import Net, batch, flat

STEPS, ROUND = 4, 2


def train(compression: str, sync: str) -> list[str]:
    """What the weights are after each step."""
    torch.manual_seed(3)
    model = Net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        compression=compression,
        sync=sync,
    )
    digests = []
    for step in range(STEPS):
        x, target = batch(step, hvd.rank())
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()
        digests.append(hashlib.sha256(flat(model).tobytes()).hexdigest())
    assert len(set(digests)) == STEPS
    return digests


hvd.init()
torch.set_num_threads(1)
assert hvd.cross_size() > 1
if hvd.cross_rank() % 2:
    other = codec.declare(ctypes.CDLL(sys.argv[1]))
    codec.library = powersgd.library = lambda: other
for compression, sync in [
    *((name, "every_step") for name in sys.argv[2:]),
    ("int8", f"diloco:steps={ROUND}"),
]:
    runs = [train(compression, sync) for _ in range(2)]
    assert runs[0] == runs[1], (compression, sync)
    common = slice(None) if sync == "every_step" else slice(ROUND - 1, None, ROUND)
    everybodys = MPI.COMM_WORLD.allgather(runs[0][common])
    assert everybodys == everybodys[:1] * hvd.size(), (compression, sync, everybodys)
print(f"ok {hvd.rank()}")
hvd.shutdown()
