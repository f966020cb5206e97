"""Persistent allreduces that are started and waited for, and what may be their buffer."""

from __future__ import annotations

import array
import sys
import weakref

import numpy as np
import pytest
import torch

from hvd_ext.allreduce.persistent import PersistentAllreduce, allreduce
from hvd_ext.errors import UsageError

IN_LONG = [pytest.param(size, marks=pytest.mark.long) for size in (1, 2, 4)]
pytestmark = pytest.mark.ranks(3, *IN_LONG)


def sum_of_ranks(topology):
    """Of rank + 1."""
    return topology.world.size * (topology.world.size + 1) // 2


def test_started_calls_overlap(topology):
    """Several are under way, with a blocking one in between, and are awaited in another order."""
    long = PersistentAllreduce(topology, np.empty(1 << 20, np.float32), algorithm="ring")
    short = PersistentAllreduce(topology, np.empty(64), algorithm="native")
    shared = PersistentAllreduce.in_arena(topology, 5000, "float32")
    other = PersistentAllreduce(topology, np.empty(3, np.int64), algorithm="recursive_doubling")
    for _ in range(20):
        for plan in (long, short, shared, other):
            plan.buffer[:] = topology.world.rank + 1
        for plan in (long, short, shared):
            plan.start()
        other()
        assert (other.buffer == sum_of_ranks(topology)).all()
        for plan in (shared, short, long):
            plan.wait()
            assert (plan.buffer == sum_of_ranks(topology)).all()


def test_start_and_wait_alternate(topology):
    planned = PersistentAllreduce(topology, np.empty(3, np.int64), algorithm="recursive_doubling")
    planned.start()
    for misuse in (planned, planned.start):
        with pytest.raises(UsageError, match=r"call wait\(\) before"):
            misuse()
    planned.wait()
    with pytest.raises(UsageError, match="not started"):
        planned.wait()


def test_a_call_takes_no_frame_of_pythons(topology):
    shared = PersistentAllreduce.in_arena(topology, 5000, "float32")
    short = PersistentAllreduce(topology, np.ones(5), algorithm="shared_memory")
    native = PersistentAllreduce(topology, np.ones(5), algorithm="native")
    for planned in (shared, short, native):
        entered = []
        sys.setprofile(lambda frame, event, _, to=entered: to.append((event, frame.f_code.co_name)))
        planned()
        sys.setprofile(None)
        assert [name for event, name in entered if event == "call"] == []


def test_a_plan_that_is_dropped_is_freed_at_once(topology):
    for make in (
        lambda: PersistentAllreduce.in_arena(topology, 100, "float32"),
        lambda: PersistentAllreduce(topology, np.ones(5), algorithm="ring"),
    ):
        planned = make()
        planned()
        planned.start()
        planned.wait()
        freed = weakref.ref(planned)
        del planned
        assert freed() is None


def test_memory_of_any_shape_and_kind_is_reduced_where_it_lies(topology):
    for memory in (np.ones((3, 4, 5)), array.array("d", [1.0] * 7), memoryview(bytearray(8))):
        planned = PersistentAllreduce(topology, memory)
        planned.buffer[:] = topology.world.rank + 1
        planned()
        assert (np.asarray(memory) == sum_of_ranks(topology)).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([1.0, 2.0], "type list"),
        (b"read only", "written in place"),
        (np.ones((4, 4))[:, ::2], "contiguous"),
    ],
    ids=["a list", "read only", "not contiguous"],
)
def test_other_memory_is_refused(topology, wrong, says):
    with pytest.raises(UsageError, match=says):
        PersistentAllreduce(topology, wrong)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("float32", "sum"), ("float16", "sum"), ("int32", "max"), ("float64", "average")],
)
def test_once_only(topology, dtype, name):
    size, total = topology.world.size, sum_of_ranks(topology)
    values = np.full(100, topology.world.rank + 1, dtype)
    allreduce(topology, values, name)
    assert (values == {"sum": total, "max": size, "average": total / size}[name]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "uint8"])
def test_tensors(hvd, topology, dtype):
    for op, expected in (
        (hvd.Sum, sum_of_ranks(topology)),
        (hvd.Max, hvd.size()),
        (hvd.Min, 1),
    ):
        tensor = torch.full((2, 3), hvd.rank() + 1, dtype=getattr(torch, dtype))
        hvd.plan_allreduce(tensor, op)()
        assert (tensor == expected).all(), op


def test_a_parameter(hvd):
    parameter = torch.nn.Parameter(torch.full((5,), float(hvd.rank())))
    hvd.plan_allreduce(parameter)()
    assert torch.allclose(parameter, torch.full((5,), (hvd.size() - 1) / 2))


def test_what_a_tensor_or_operation_cannot_be_is_told(hvd):
    with pytest.raises(UsageError, match="dense and contiguous"):
        hvd.plan_allreduce(torch.ones(4, 4).t()[1:])
    with pytest.raises(UsageError, match="use Average"):
        hvd.plan_allreduce(torch.ones(4), hvd.Adasum)
