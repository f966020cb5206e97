"""Waits in Horovod, or in hvd_ext's optimizer, for a rank that never comes."""

import sys
import time

import torch

how = sys.argv[1]
if how in ("bucket", "without Horovod"):
    import hvd_ext.torch as hvd
else:
    import horovod.torch as hvd
torch.set_num_threads(1)
hvd.init()
last = hvd.rank() == hvd.size() - 1


def wait(*names: str) -> None:
    for handle in [hvd.allreduce_async(torch.ones(10), name=name) for name in names]:
        hvd.synchronize(handle)


for _ in range(3):
    wait("first", "second")
if how in ("missing", "without Horovod"):
    wait(*(["first"] if last else ["second", "first", "third"]))
elif how == "crossed":
    for name in ("first", "second") if last else ("second", "first"):
        wait(name)
elif how == "set":
    odd = hvd.add_process_set([0, hvd.size() - 1])
    if not last and odd.included():
        hvd.allreduce(torch.ones(10), name="first", process_set=odd)
elif how == "bucket":
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    (model[2] if last else model)(torch.ones(2, 8)).sum().backward()
    if not last:
        optimizer.step()
if last:
    time.sleep(600)
wait("end")
