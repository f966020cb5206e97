"""The private behaviour of torch that hvd_ext.c10d needs."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hvd_ext.c10d.torch_internals import (
    GroupBase,
    WorkBase,
    at_end_of_backward,
    backward_pass,
    reduction_name,
    share_storage,
    storage_is_there,
    store_of,
    work_in,
)


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_storage_moves_to_a_file_and_its_views_follow() -> None:
    before = descriptors()
    tensor = torch.arange(1000.0)
    view = tensor[10:30].view(4, 5)
    old = tensor.data_ptr()
    descriptor = share_storage(tensor)
    assert tensor.data_ptr() != old
    assert view.data_ptr() == tensor.data_ptr() + 40
    assert tensor.is_shared()
    assert view[0, 0] == 10
    tensor[10] = -1
    assert view[0, 0] == -1
    assert os.pread(descriptor, 4, 40) == b"\x00\x00\x80\xbf"
    assert os.fstat(descriptor).st_size == tensor.nbytes
    assert share_storage(tensor) == descriptor  # once is enough
    del tensor, view
    assert descriptors() == before


def test_a_storage_is_there_as_long_as_a_view_of_it_is() -> None:
    tensor = torch.arange(1000.0)
    share_storage(tensor)
    is_there = storage_is_there(tensor)
    view = tensor[3:]
    del tensor
    gc.collect()
    assert is_there()
    del view
    assert not is_there()


def test_where_there_is_no_room_a_storage_stays_where_it_is() -> None:
    names = {path.name for path in Path("/dev/shm").iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    tensor = torch.arange(1000.0)
    old = tensor.data_ptr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RuntimeError):
            share_storage(tensor)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert tensor.data_ptr() == old
    assert tensor.sum() == 999 * 500
    left = {path.name for path in Path("/dev/shm").iterdir()} - names
    assert not [name for name in left if f"_{os.getpid()}_" in name]


def test_options_name_their_reduction() -> None:
    options = dist.AllreduceOptions()
    assert reduction_name(options) == "SUM"
    options.reduceOp = dist.ReduceOp.BXOR
    assert reduction_name(options) == "BXOR"
    assert reduction_name(None) == "SUM"


def test_a_group_is_what_torch_asks_for() -> None:
    class Group(GroupBase):
        def barrier(self, opts: object = None) -> dist.Work:
            return WorkBase()

    group = Group(1, 3, "mine")
    assert (group.rank(), group.size(), group.name()) == (1, 3, "mine")
    if isinstance(group, dist.ProcessGroup):
        group._set_group_name("one")
        assert group.group_name == "one"
        assert group._get_backend(torch.device("cpu")) is group
        with pytest.raises(RuntimeError, match="serves the CPU, not cuda"):
            group._get_backend(torch.device("cuda"))


def test_a_group_has_one_store(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        group = dist.distributed_c10d.GroupMember.WORLD
        assert group is not None
        store = store_of(group)
        store.set("a", b"1")
        assert store.check(["a"])
        assert store_of(group) is store
        store.delete_key("a")
    finally:
        dist.destroy_process_group()


# A kernel that stands before an operator's stays until the process ends.
BEFORE = """
import torch, torch.distributed as dist
from hvd_ext.c10d.torch_internals import group_of, has_failed, run_before, work_in
seen = []
def wrapper(run, arguments):
    result = run()
    group, work = group_of(arguments["process_group"]), work_in(result)
    seen.append((list(arguments), group.size(), arguments["tensors"][0].data_ptr(), work))
    return result
run_before("allreduce_", wrapper)
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
for tensor in (torch.ones(3), torch.ones(3, requires_grad=True).detach()):
    dist.all_reduce(tensor)
    names, size, address, work = seen.pop()
    assert names[:3] == ["tensors", "process_group", "reduce_op"], names
    assert size == 1 and address == tensor.data_ptr()
    assert work.is_completed() and not has_failed(work.get_future())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
seen.clear()
model(torch.ones(1, 3)).sum().backward()  # from C++
assert len(seen) == 1
failed = torch.futures.Future()
failed.set_exception(ValueError("as asked for"))
assert has_failed(failed)
dist.destroy_process_group()
"""


def test_calls_of_an_operator_pass_through_a_wrapper() -> None:
    done = subprocess.run([sys.executable, "-c", BEFORE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_an_operator_returns_may_have_no_work() -> None:
    assert [work_in(result) for result in (None, (), torch.ones(1), [torch.ones(1)])] == [None] * 4


def test_the_end_of_backward_comes_after_what_was_asked_for_before() -> None:
    order = []

    def hook(gradient: torch.Tensor) -> None:
        assert backward_pass() >= 0
        at_end_of_backward(lambda: (order.append(1), at_end_of_backward(lambda: order.append(3))))
        at_end_of_backward(lambda: order.append(2))

    parameter = torch.ones(1, requires_grad=True)
    parameter.register_hook(hook)
    assert backward_pass() == -1
    parameter.sum().backward()
    assert order == [1, 2, 3]
    assert backward_pass() == -1
