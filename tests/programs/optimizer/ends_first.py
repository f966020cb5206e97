"""Rank 0 ends while the others still use MPI.

Arguments: how all end, exit or shutdown, after which the optimizer is refused; and the ranks of a
(pretended) node, if not all. "interactive" before them: in an interactive session, after an error.
"""

from __future__ import annotations

import os
import sys
import time

import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext.errors import UsageError

arguments = sys.argv[1:]
if arguments[0] == "interactive":
    how, *ranks_per_node = ["typed", *arguments[2:]]
    if not sys.flags.interactive:
        typed, end = os.pipe()
        os.write(end, b"1 / 0\nhvd.shutdown()\n" if arguments[1] == "shutdown" else b"1 / 0\n")
        os.close(end)
        os.dup2(typed, sys.stdin.fileno())
        os.execv(sys.executable, [sys.executable, "-i", *sys.argv])
else:
    how, *ranks_per_node = arguments
if ranks_per_node:
    from hvd_ext.torch.job import lifecycle
    from tests.support.arena.pretended_nodes import pretend

    lifecycle.discover = lambda comm, timeout_s: pretend(comm, int(ranks_per_node[0]))

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 2))
inner = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
model(torch.full((3, 6), 1.0 + hvd.rank())).sum().backward()
optimizer.step()
rank = hvd.rank()
if rank:
    from mpi4py import MPI

    for _ in range(50):
        time.sleep(0.02)
        MPI.COMM_SELF.allgather(rank)
if how == "shutdown":
    hvd.shutdown()
    optimizer.zero_grad()
    with pytest.raises(UsageError, match=r"after hvd.shutdown\(\)"):
        model(torch.ones(3, 6)).sum().backward()
print(f"ok {rank}", flush=True)
