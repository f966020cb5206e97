"""Ranks that call different collectives, or one of which fails alone: all raise an error."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from hvd_ext.c10d.backend import copying
from hvd_ext.errors import HvdExtError, MismatchError, UsageError
from tests.ranks.asserts import parallel_assert

pytestmark = [
    pytest.mark.usefixtures("backend"),
    pytest.mark.ranks(2, 3),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def floats(count):
    return torch.ones(count)


# The calls of the last rank and of the others, and how the error names both.
CASES = {
    "count": (
        lambda g: dist.all_reduce(floats(500), group=g),
        lambda g: dist.all_reduce(floats(1000), group=g),
        ["all_reduce() of 2000 bytes of float32 with SUM", "all_reduce() of 4000 bytes"],
    ),
    "nothing": (
        lambda g: dist.all_reduce(floats(0), group=g),
        lambda g: dist.all_reduce(floats(2), group=g),
        ["all_reduce() of 0 bytes", "all_reduce() of 8 bytes"],
    ),
    "pieces": (
        lambda g: dist.all_reduce(floats(4 << 20), group=g),
        lambda g: dist.all_reduce(floats(4), group=g),
        ["all_reduce() of 16777216 bytes", "all_reduce() of 16 bytes"],
    ),
    "dtype": (
        lambda g: dist.all_reduce(torch.ones(8, dtype=torch.int32), group=g),
        lambda g: dist.all_reduce(floats(8), group=g),
        ["32 bytes of int32", "32 bytes of float32"],
    ),
    "dtype of what is copied": (
        lambda g: dist.broadcast(torch.ones(8, dtype=torch.int32), 0, g),
        lambda g: dist.broadcast(floats(8), 0, g),
        ["of int32 with root 0", "of float32 with root 0"],
    ),
    "operation": (
        lambda g: dist.all_reduce(floats(8), dist.ReduceOp.MAX, g),
        lambda g: dist.all_reduce(floats(8), dist.ReduceOp.SUM, g),
        ["float32 with MAX", "float32 with SUM"],
    ),
    "root": (
        lambda g: dist.reduce(floats(8), 1, group=g),
        lambda g: dist.reduce(floats(8), 0, group=g),
        ["with SUM with root 1", "with SUM with root 0"],
    ),
    "collective": (
        lambda g: dist.broadcast(floats(8), 0, g),
        lambda g: dist.all_reduce(floats(8), group=g),
        ["called broadcast() of 32 bytes", "called all_reduce() of 32 bytes"],
    ),
    "barrier": (
        lambda g: dist.barrier(g),
        lambda g: dist.scatter(floats(1), [floats(1)] * size() if rank() == 0 else None, group=g),
        ["called barrier()", "called scatter() of float32 with root 0"],
    ),
    "gathered lists": (
        lambda g: dist.all_gather([floats(6)] * size(), floats(6), g),
        lambda g: dist.all_gather([floats(4)] * size(), floats(4), g),
        ["all_gather() of 24 bytes", "all_gather() of 16 bytes"],
    ),
    "uneven lists": (
        lambda g: dist.all_gather([floats(4)] * (size() - 1) + [floats(8)], floats(8), g),
        lambda g: dist.all_gather([floats(4)] * size(), floats(4), g),
        ["of float32, with tensors of different sizes", "all_gather() of 16 bytes"],
    ),
    "scattered": (
        lambda g: dist.reduce_scatter_single(floats(3), floats(3 * size()), group=g),
        lambda g: dist.reduce_scatter_single(floats(2), floats(2 * size()), group=g),
        ["called reduce_scatter() of", "bytes of float32 with SUM"],
    ),
}


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def caught(call, *arguments):
    """What a call raises."""
    with pytest.raises(HvdExtError) as error:
        call(*arguments)
    return error.value


def test_different_collectives_are_named_on_every_rank(comm, new_group):
    for case, (last, others, named) in CASES.items():
        group = new_group()
        error = caught(last if rank() == size() - 1 else others, group)
        parallel_assert(comm, isinstance(error, MismatchError), (case, error))
        parallel_assert(comm, all(words in str(error) for words in named), (case, error))
        everyones = comm.allgather(str(error))
        parallel_assert(comm, set(everyones) == {str(error)}, (case, everyones))
        # The ranks are out of step: nothing goes on as if nothing had been.
        again = caught(dist.barrier, group)
        parallel_assert(comm, isinstance(again, MismatchError), (case, again))


def test_a_thread_that_uses_the_same_group_in_another_order_is_named(comm, new_group):
    """As `async_save` does during the collectives of a training step."""
    group = new_group()
    calls = [lambda: dist.all_reduce(floats(2), group=group, async_op=True)]
    calls.append(lambda: dist.barrier(group, async_op=True))
    works = [call() for call in (calls if rank() else calls[::-1])]
    errors = [caught(work.wait) for work in works]
    parallel_assert(comm, all("barrier()" in str(e) for e in errors), errors)
    parallel_assert(comm, all("async_save()'s, its own process group" in str(e) for e in errors))


def test_a_call_that_one_rank_refuses_is_told_to_the_others(comm, new_group):
    group, last = new_group(), size() - 1
    rows = [1] * size()
    given = rows if rank() != last else [2] * size()
    both = floats(size()), floats(size())
    error = caught(lambda: dist.all_to_all_single(*both, rows, given, group))
    said = "split into" if rank() == last else f"rank {last} failed: all_to_all_single() of"
    parallel_assert(comm, said in str(error), error)
    after = caught(lambda: dist.all_reduce(floats(1), group=group))
    parallel_assert(comm, f"all_to_all_single() of {size()} rows" in str(after), after)


def test_an_error_in_a_collective_is_told_to_the_others(comm, new_group, monkeypatch):
    group, last = new_group(), size() - 1
    total = floats(3)
    dist.all_reduce(total, group=group)

    def no_room(_):
        raise MemoryError("no room")

    if rank() == last:
        monkeypatch.setattr(copying, "read", no_room)

    def call():
        dist.all_gather_single(floats(size()), floats(1), group)

    if rank() == last:
        with pytest.raises(MemoryError):
            call()
    else:
        error = caught(call)
        assert f"rank {last} failed: MemoryError: no room" in str(error), error
    monkeypatch.undo()
    after = caught(lambda: dist.all_reduce(floats(1), group=group))
    parallel_assert(comm, "no room" in str(after), after)


def test_what_all_ranks_refuse_leaves_the_group_in_step(comm, new_group):
    group = new_group()
    for count in (1, 2, 3):
        for _ in range(count):
            with pytest.raises(UsageError, match="BAND of float32"):
                dist.all_reduce(floats(1), dist.ReduceOp.BAND, group)
        total = floats(5)
        dist.all_reduce(total, group=group)
        parallel_assert(comm, (total == size()).all(), total)


def test_signs_that_are_still_to_be_applied(comm, new_group):
    group, last = new_group(), size() - 1
    negative = torch._neg_view(torch.full((4,), rank() + 1.0))
    dist.all_reduce(negative, group=group)
    parallel_assert(comm, (negative == -sum(range(1, size() + 1))).all(), negative)
    imaginary = torch.full((4,), 1 + 2j).conj().imag
    assert imaginary.is_neg()
    out = torch.empty(4 * size())
    dist.all_gather_single(out, imaginary, group)
    parallel_assert(comm, (out == -2).all(), out)
    target = torch._neg_view(torch.zeros(4))
    dist.broadcast(imaginary if rank() == last else target, last, group)
    parallel_assert(comm, rank() == last or (target == -2).all(), target)


def test_the_root_of_a_broadcast_only_reads(comm, new_group):
    group = new_group()
    expanded = torch.ones(6, 1).expand(6, 4)
    tensor = expanded if rank() == 0 else torch.zeros(6, 4)
    dist.broadcast(tensor, 0, group)
    parallel_assert(comm, (tensor == 1).all(), tensor)
    if rank():
        tensor = torch.zeros(6, 1).expand(6, 4)
    error = "" if rank() == 0 else "broadcast() into a tensor of shape (6, 4) and strides (1, 0)"
    said = str(caught(lambda: dist.broadcast(tensor, 0, group)))
    parallel_assert(comm, (error or "failed: broadcast() into a tensor") in said, said)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_outputs_that_overlap_themselves_are_refused(comm, new_group, name):
    group = new_group()
    own, line = floats(4), torch.zeros(1).expand(4)
    calls = {
        "all_reduce": lambda: dist.all_reduce(line, group=group),
        "all_gather": lambda: dist.all_gather([line] * size(), own, group),
        "reduce_scatter": lambda: dist.reduce_scatter(line, [own] * size(), group=group),
        "all_to_all": lambda: dist.all_to_all([line] * size(), [own] * size(), group),
    }
    with pytest.raises(UsageError, match=rf"{name}\(\) into a tensor of shape \(4,\)"):
        calls[name]()
    total = floats(5)
    dist.all_reduce(total, group=group)
    parallel_assert(comm, (total == size()).all(), total)
