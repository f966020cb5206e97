"""Several hosts: who is where, and training there. Arguments: hosts, ranks per host."""

from __future__ import annotations

import hashlib
import sys

import horovod.torch as horovod
import torch
from mpi4py import MPI

import hvd_ext.torch as hvd
from hvd_ext import listen
from hvd_ext.job.topology import discover

hosts, ranks_per_host = map(int, sys.argv[1:])
hvd.init()
torch.set_num_threads(1)
rank, size = hvd.rank(), hvd.size()


def everyone_is_where_the_hosts_say():
    topology = discover(MPI.COMM_WORLD, 30.0)
    assert topology.homogeneous
    assert (topology.nodes, topology.node.size) == (hosts, ranks_per_host)
    assert topology.cross.size == hosts
    assert topology.hosts == tuple(f"host{r // ranks_per_host}" for r in range(size))
    first = rank // ranks_per_host * ranks_per_host
    assert topology.node_ranks() == list(range(first, first + ranks_per_host))
    assert topology.cross.rank == rank // ranks_per_host


def train(module):
    torch.manual_seed(3)
    # Shares from some bytes to some 100 KiB, and none that the ranks divide evenly.
    layers = [torch.nn.Linear(301, 701), torch.nn.Linear(701, 13), torch.nn.Linear(13, 1)]
    model = torch.nn.Sequential(*layers)
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = module.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    torch.manual_seed(100 + rank)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(5, 301)).pow(2).mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def parameters_are_horovods_and_equal_on_all_ranks():
    events = []
    stop = listen(events.append)
    ours = train(hvd)
    stop()
    assert sum(event.operation == "allreduce" for event in events) > 4
    torch.testing.assert_close(ours, train(horovod), rtol=1e-4, atol=1e-6)
    digest = hashlib.sha256(ours.numpy().tobytes()).hexdigest()
    assert len(set(MPI.COMM_WORLD.allgather(digest))) == 1


everyone_is_where_the_hosts_say()
parameters_are_horovods_and_equal_on_all_ranks()
print(f"ok {rank}")
hvd.shutdown()
