"""DDP models on GPUs, on the stand-in for CuPy: the bits of the exchange on the host.

Each mutant is a mistake in the order of events between DDP's buckets and the arena's.
"""

from __future__ import annotations

import gc
import logging

import pytest
import torch

from hvd_ext.arena.cuda import self_check
from hvd_ext.arena.cuda.arena import DeviceArena
from hvd_ext.c10d import attach, exchange
from hvd_ext.c10d.device_arena import DeviceBucketArena
from hvd_ext.compression.formats import FORMATS, NONE, powersgd
from hvd_ext.errors import MismatchError
from testbed.cuda_stand_in import streams
from tests.ranks.asserts import parallel_assert
from tests.support.arena.pretended_nodes import pretend
from tests.support.c10d.models import Weighted, train, wrap
from tests.support.mutants import mutate

pytestmark = pytest.mark.usefixtures("gloo")
LONG = pytest.mark.long


@pytest.fixture(autouse=True)
def _devices_work():
    yield
    gc.collect()
    streams.forget_errors()


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize(
    ("dtype", "format"),
    [
        ("float32", NONE),
        ("float16", NONE),
        ("bfloat16", NONE),
        ("float32", FORMATS["int8"]),
        ("float32", powersgd(2)),
        pytest.param("float32", FORMATS["bf16"], marks=LONG),
        pytest.param("float32", FORMATS["fp16"], marks=LONG),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_buckets_have_the_bits_of_the_host(comm, monkeypatch, dtype, format):
    from tests.support.c10d.device_ddp import rounds

    for ranks_per_node in {2: [2, 1], 4: [4, 2, 1]}[comm.size]:
        topology = pretend(comm, ranks_per_node)
        problems, said = rounds(topology, monkeypatch, dtype, format)
        parallel_assert(comm, not problems, (ranks_per_node, problems))
        parallel_assert(comm, "memory of the GPU" in said and "CUDA IPC" in said, said)
        parallel_assert(comm, ("pinned memory" in said) == (ranks_per_node < comm.size), said)
        topology.close()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True, "skipped": lambda step: step % 3},
        {"accumulated": 2, "dtype": torch.bfloat16},
    ],
    ids=["view", "static", "unused", "accumulated"],
)
def test_ddp_gets_the_bits_that_it_gets_on_the_host(comm, monkeypatch, options):
    wanted = train(True, **options)
    from tests.support.c10d.device_ddp import on_device

    on_device(monkeypatch, comm.rank % streams.DEVICES)
    said = []
    got = train(True, looked_at=lambda e, _: said.append(e.explain()), **options)
    same = [torch.equal(a, b) for a, b in zip(got, wanted, strict=True)]
    parallel_assert(comm, all(same), same)
    parallel_assert(comm, "CUDA IPC" in said[0], said)


def trained(comm, caplog):
    """The reason for the way of a model's gradients, and this rank's lines about it."""
    said = []
    caplog.clear()
    with caplog.at_level(logging.WARNING, "hvd_ext"):
        got = train(True, looked_at=lambda e, _: said.append(e.explain()))
    same = [torch.equal(a, b) for a, b in zip(got, train(False), strict=True)]
    parallel_assert(comm, all(same), same)
    return said[0], [r.message for r in caplog.records if "DDP's own process group" in r.message]


@pytest.mark.ranks(2)
def test_gpus_that_are_wrong_leave_it_to_ddps_own_group(comm, monkeypatch, caplog):
    from tests.support.c10d.device_ddp import on_device

    on_device(monkeypatch, comm.rank, proved=False)
    check, results = self_check.check, []

    def counted(*given):
        results.append("refused")
        check(*given, rounds=4)
        results[-1] = "right"

    monkeypatch.setattr(self_check, "check", counted)
    monkeypatch.setattr(self_check, "_proved", set())
    with monkeypatch.context() as patch:
        if comm.rank == 1:
            wait = "self._runtime.streamWaitEvent(stream, events[-1])"
            mutate(patch, DeviceArena, "finish", wait, "pass")
        for _ in range(5):  # on a busy machine a wrong order may give the right bits
            self_check._proved.clear()
            reason, lines = trained(comm, caplog)
            if "gave wrong sums" in reason:
                break
    parallel_assert(comm, "gave wrong sums" in reason, reason)
    parallel_assert(comm, len(lines) == (comm.rank == 0), lines)
    results.clear()
    # The same program with GPUs that are right, and seen to be so once.
    for _ in range(2):
        reason, lines = trained(comm, caplog)
        parallel_assert(comm, "CUDA IPC" in reason and not lines, reason)
    parallel_assert(comm, results == ["right"], results)


@pytest.mark.ranks(2)
def test_one_rank_can_switch_it_off(comm, monkeypatch, caplog):
    from tests.support.c10d.device_ddp import on_device

    on_device(monkeypatch, 0)
    if comm.rank == 1:
        monkeypatch.setenv("HVD_EXT_DEVICE_ARENA", "0")
    reason, lines = trained(comm, caplog)
    parallel_assert(comm, len(lines) == (comm.rank == 0), lines)
    wanted = "by DDP's own process group: HVD_EXT_DEVICE_ARENA=0 on rank 1"
    parallel_assert(comm, reason == wanted, reason)


@pytest.mark.ranks(2)
def test_models_on_different_devices_are_refused(comm, monkeypatch):
    from hvd_ext.c10d import ddp

    if comm.rank == 1:
        monkeypatch.setattr(ddp, "check", lambda model: torch.device("cuda", 0))
    with pytest.raises(MismatchError, match="rank 1 is on cuda, and that of rank 0 on cpu"):
        attach(wrap(Weighted()))


COPIED = "self._copy(index, self._own.address + self._offset(index), buffer.data_ptr())"
MUTANTS = {
    "a bucket is ready before it is copied": (
        *(DeviceBucketArena, "put", COPIED, f"self.ready(index); {COPIED}"),
    ),
    "copies are not in the stream of the gradients": (
        *(DeviceBucketArena, "_copy", "self._current_stream()", "self._stream.ptr"),
    ),
    "means are copied before they are there": (
        exchange.Exchange,
        "_end_step",
        "arena.finish()\n        for index in range(first, count):\n"
        "            arena.take(index, self._buffers[index])",
        "for index in range(first, count):\n"
        "            arena.take(index, self._buffers[index])\n        arena.finish()",
    ),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_killed(comm, monkeypatch, mutant):
    from tests.support.c10d.device_ddp import rounds

    mutate(monkeypatch, *MUTANTS[mutant])
    topology = pretend(comm, 2)
    for _ in range(5):  # on a busy machine a wrong order may give the right bits
        problems, _ = rounds(topology, monkeypatch, "float32", NONE)
        if any(comm.allgather(bool(problems))):
            return
    raise AssertionError("the rounds did not notice")
