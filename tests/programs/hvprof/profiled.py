"""`profiled.py DOOR STEPS`: trains for some steps with DDP, Horovod or hvd_ext.

With the door "marked" DDP's steps are marked by the program, whose optimizer steps twice in each;
with "dies" rank 1 kills itself after the steps; "plain" uses no torch.
"""

import os
import signal
import sys

door, steps = sys.argv[1], int(sys.argv[2])
if door == "plain":
    from mpi4py import MPI

    MPI.COMM_WORLD.allreduce(1)
    sys.exit()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import hvprof  # noqa: E402

model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(3)])
optimizer = torch.optim.Adam(model.parameters())
train: torch.nn.Module = model
if door in ("horovod", "hvd_ext"):
    if door == "hvd_ext":
        import hvd_ext.torch as hvd
    else:
        import horovod.torch as hvd
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
else:
    dist.init_process_group("gloo")
    train = torch.nn.parallel.DistributedDataParallel(model)
for _ in range(steps):
    optimizer.zero_grad()
    train(torch.ones(8, 128)).sum().backward()
    optimizer.step()
    if door == "marked":
        optimizer.step()
        hvprof.step()
if door == "dies" and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if dist.is_initialized():
    dist.destroy_process_group()
