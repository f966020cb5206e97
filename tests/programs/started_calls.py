"""Planned allreduces that are started and waited for, and what a plan takes as its buffer."""

from __future__ import annotations

import array

import numpy as np
import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext.allreduce.persistent import PersistentAllreduce, allreduce
from hvd_ext.errors import UsageError
from hvd_ext.torch import runtime

hvd.init()
rank, size = hvd.rank(), hvd.size()
topology = runtime.the_topology(60.0)
ranks_sum = size * (size + 1) // 2

# Started calls of several plans, with blocking calls of others in between, in an order
# that differs from that of the waits.
long = PersistentAllreduce(topology, np.empty(1 << 20, np.float32), algorithm="ring")
short = PersistentAllreduce(topology, np.empty(64), algorithm="native")
shared = PersistentAllreduce.in_arena(topology, 5000, "float32")
other = PersistentAllreduce(topology, np.empty(3, np.int64), algorithm="recursive_doubling")
for _ in range(20):
    for plan in (long, short, shared, other):
        plan.buffer[:] = rank + 1
    for plan in (long, short, shared):
        plan.start()
    other()
    assert (other.buffer == ranks_sum).all()
    for plan in (shared, short, long):
        plan.wait()
        assert (plan.buffer == ranks_sum).all()
other.start()
for misuse in (other, other.start):
    with pytest.raises(UsageError, match=r"call wait\(\) before"):
        misuse()
other.wait()
with pytest.raises(UsageError, match="not started"):
    other.wait()

# Memory of any shape and kind, reduced where it lies.
for memory in (np.ones((3, 4, 5)), array.array("d", [1.0] * 7), memoryview(bytearray(8))):
    planned = PersistentAllreduce(topology, memory)
    planned.buffer[:] = rank + 1
    planned()
    assert (np.asarray(memory) == ranks_sum).all()
for wrong, says in (
    ([1.0, 2.0], "type list"),
    (b"read only", "written in place"),
    (np.ones((4, 4))[:, ::2], "contiguous"),
):
    with pytest.raises(UsageError, match=says):
        PersistentAllreduce(topology, wrong)

# Once only.
for dtype, name in (
    ("float32", "sum"),
    ("float16", "sum"),
    ("int32", "max"),
    ("float64", "average"),
):
    values = np.full(100, rank + 1, dtype)
    allreduce(topology, values, name)
    expected = {"sum": ranks_sum, "max": size, "average": ranks_sum / size}[name]
    assert (values == expected).all(), (dtype, name)

# Tensors.
for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8):
    for op, expected in ((hvd.Sum, ranks_sum), (hvd.Max, size), (hvd.Min, 1)):
        tensor = torch.full((2, 3), rank + 1, dtype=dtype)
        hvd.plan_allreduce(tensor, op)()
        assert (tensor == expected).all(), (dtype, op)
parameter = torch.nn.Parameter(torch.full((5,), float(rank)))
hvd.plan_allreduce(parameter)()
assert torch.allclose(parameter, torch.full((5,), (size - 1) / 2))
with pytest.raises(UsageError, match="dense and contiguous"):
    hvd.plan_allreduce(torch.ones(4, 4).t()[1:])
with pytest.raises(UsageError, match="use Average"):
    hvd.plan_allreduce(torch.ones(4), hvd.Adasum)
topology.world.Barrier()  # who ends first ends Horovod for all
print(f"ok {rank}")
hvd.shutdown()
