"""Collectives on GPUs get the GPU's time in recordings; the works here are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hvd_ext.c10d import torch_internals, watch


class Work:
    """As NCCL's: queued at once, and done when the GPU has come to it."""

    def __init__(self, ms: float | None) -> None:
        self.ms, self.over = ms, False

    def is_completed(self) -> bool:
        return self.over

    def _get_duration(self) -> float:
        if self.ms is None:
            raise RuntimeError("Timing is not enabled.")
        return self.ms


class Recorder:
    """The recorder's functions, of which one counts."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, float]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 1

    def hvprof_collective(self, operation: bytes, *rest: Any) -> None:
        self.seen.append((operation, rest[-1]))


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(is_on=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: now.is_on)
    return now


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch, capturing: SimpleNamespace) -> Any:
    monkeypatch.setattr(watch.torch_internals, "group_of", lambda group: group)
    monkeypatch.setattr(watch.torch_internals, "work_in", lambda result: result)
    found = watch._Watcher(Recorder())
    group = watch._Group(1, b"nccl", [0, 1])
    monkeypatch.setattr(found, "_group", lambda *_: group)
    return found


def call(watcher: Any, work: Work, is_async: bool = True) -> None:
    with FakeTensorMode():
        tensors = [torch.empty(1000, device="cuda")]
    arguments = {"tensors": tensors, "process_group": None, "async_op": is_async}
    assert watcher.call("allreduce", "tensors", lambda: work, arguments) is work


@pytest.mark.parametrize("is_async", [True, False])
def test_a_call_is_recorded_when_the_gpu_has_done_it(watcher: Any, is_async: bool) -> None:
    works = [Work(8.0), Work(4.0), Work(None)]
    for work in works:
        call(watcher, work, is_async)
    seen = watcher._library.seen
    assert seen == []
    works[1].over = True
    call(watcher, works[0])
    assert seen == []  # in the order of the calls
    works[0].over = True
    call(watcher, works[2])
    assert seen == [(b"allreduce", 0.008), (b"allreduce", 0.004)]
    watcher.end(False)
    assert len(seen) == 5
    # Of one that NCCL has not timed, what the host took.
    assert 0 < seen[2][1] < 60
    assert seen[3][1] == 0.008


def test_a_work_of_torch_that_is_not_timed_says_so() -> None:
    # The name is there; it is private.
    assert torch_internals.gpu_time_s(torch_internals.WorkBase()) is None


def test_nothing_is_asked_while_a_graph_is_captured(
    watcher: Any, capturing: SimpleNamespace
) -> None:
    before, within = Work(8.0), Work(4.0)
    call(watcher, before)
    before.over, capturing.is_on = True, True
    within._get_duration = before.is_completed = lambda: 1 / 0  # type: ignore[method-assign]
    within.get_future = lambda: None  # type: ignore[attr-defined]
    call(watcher, within)
    assert [operation for operation, _ in watcher._library.seen] == [b"allreduce"]
    assert 0 < watcher._library.seen[0][1] < 60
