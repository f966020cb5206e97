"""Rank 1 leaves after a part of a step that rank 0 takes whole. Argument: ranks of a node.

It shuts down after the first step, in which ranks agree on sparse gradients, and after
the sixth, where they agree on nothing else. Where each rank is a node, the first ends the job.
"""

from __future__ import annotations

import sys

import torch
from mpi4py import MPI

import hvd_ext.torch as hvd
from hvd_ext.errors import StallError
from hvd_ext.torch.job import lifecycle
from tests.support.arena.pretended_nodes import pretend

ranks_per_node = int(sys.argv[1])
lifecycle.discover = lambda comm, _: pretend(comm, ranks_per_node)
x = torch.ones(1, 5)
for steps in (1, 6):
    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 5))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    for _ in range(steps):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if hvd.rank() == 1 and ranks_per_node > 1:
        (model if steps == 1 else model[1])(x).sum().backward()
    elif hvd.rank() == 0:
        said = ""
        try:
            model(x).sum().backward()
            optimizer.step()
        except StallError as error:
            said = str(error)
        assert "rank 1 (" in said, said
        assert "ended before a gradient exchange" in said, said
        print("told at once", flush=True)
    hvd.shutdown()
    MPI.COMM_WORLD.Barrier()
