"""Runs torch.profiler in some steps of a rank, if the rank is recorded.

A step ends where the program calls `hvprof.step()`, and in other programs with `step()` of the
optimizer that stepped first. When the last step has ended, or the program ends, the rank writes its
timeline next to its recording.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from hvd_ext.events import MARKED_STEP, recorder
from hvd_ext.job.ending import at_exit
from hvd_ext.timeline import CLOCK_MARK, SUFFIX, Timeline, activities_of, write

# A rank's trace has eight numbers for each call; the first three are the call's number, begin and
# end.
_CALL_BYTES = 64


def profile_steps(first: int, last: int) -> None:
    """Record steps `first` to `last` of this process, counted from 1, if it has a recorder."""
    if recorder() is not None:
        _Profiled(first, last)


class _Profiled:
    """Counts steps, and runs the profiler in some of them."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._seen = 0
        self._marks: list[tuple[int, int]] = []
        self._profile: Any = None
        self._on_gpu = False
        # Whether an optimizer's step has begun, and the id of the optimizer that stepped first.
        self._begun, self._stepping = False, -1
        self._program_marks = False
        self._hooks = [
            register_optimizer_step_pre_hook(self._begins),
            register_optimizer_step_post_hook(self._stepped),
        ]
        MARKED_STEP.append(self._marked)
        at_exit(self._end)

    def _begins(self, *_: object) -> None:
        self._begun = True

    def _stepped(self, optimizer: object, *_: object) -> None:
        """Count an optimizer's step; one within a DistributedOptimizer's does not count twice."""
        begun, self._begun = self._begun, False
        if self._stepping < 0:
            self._stepping = id(optimizer)
        if begun and self._stepping == id(optimizer) and not self._program_marks:
            self._step_ended()

    def _marked(self) -> None:
        """Count a step that the program marks; from the first one on, only these count."""
        if not self._program_marks:
            self._program_marks, self._seen, self._marks = True, 0, []
            running, self._profile = self._profile, None
            if running:  # it runs in steps that were counted by an optimizer, which no longer count
                running.stop()
        self._step_ended()

    def _step_ended(self) -> None:
        self._seen += 1
        try:
            if self._seen == self._first - 2:
                self._warm_up()
            elif self._seen >= self._first - 1 and self._profile:
                self._next()
        except Exception as error:  # the program continues without a timeline
            self._give_up(error)

    def _warm_up(self) -> None:
        """Start the profiler a step early, because starting takes long."""
        self._on_gpu = torch.cuda.is_initialized()
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        count = self._last - self._first + 1
        steps = schedule(wait=0, warmup=1, active=count, repeat=1)
        self._profile = profile(activities=kinds, schedule=steps, on_trace_ready=self._ready)
        self._profile.start()

    def _next(self) -> None:
        running, is_last = self._profile, self._seen == self._last
        if self._on_gpu and (is_last or not self._marks):
            torch.cuda.synchronize()
        if self._marks:
            self._mark()
        running.step()
        if is_last:
            self._close()
        else:
            self._mark()

    def _mark(self) -> None:
        """Note a moment on both clocks, the profiler's and the recorder's."""
        before_ns = time.monotonic_ns()
        with record_function(f"{CLOCK_MARK}{len(self._marks)}"):
            pass
        self._marks.append((before_ns, time.monotonic_ns()))

    def _end(self, failed: bool) -> None:
        del failed
        try:
            if self._hooks:
                self._write()
            if self._profile:
                self._profile.stop()  # this calls `_ready` again if a step was recorded
        except Exception as error:
            self._give_up(error)

    def _ready(self, running: profile) -> None:
        if running is not self._profile:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            running.export_chrome_trace(str(path))
            events = json.loads(path.read_bytes())["traceEvents"]
        activities, steps = activities_of(events, self._marks)
        calls, lost_until_ns = self._calls(steps[0][0], steps[-1][1]) if steps else (b"", 0)
        lost = sum(begin_ns < lost_until_ns for begin_ns, _ in steps)
        if lost:
            print(
                f"hvprof: the timeline lacks {lost} of {len(steps)} steps, as later calls have "
                "overwritten theirs: record fewer steps, or more calls with --trace N",
                file=sys.stderr,
            )
        self._write(tuple(steps[lost:]), tuple(activities), calls, lost=lost)

    def _calls(self, begin_ns: int, end_ns: int) -> tuple[bytes, int]:
        """Return the traced calls of these steps, and the time up to which calls are lost, or 0.

        They are copied because later calls overwrite the oldest ones.
        """
        path = self._path()
        if path is None or not (trace := path.with_suffix(".trace")).exists():
            return b"", 0
        calls = np.memmap(trace, "<i8", "r").reshape(-1, _CALL_BYTES // 8)[1:]
        calls = calls[calls[:, 0] > 0]
        within = (calls[:, 2] >= begin_ns) & (calls[:, 1] <= end_ns)
        # The trace gets a call when it has ended, and counts from 1.
        number, _, ended_ns = min(calls[:, :3].tolist(), default=(1, 0, 0))
        return bytes(calls[within].tobytes()), ended_ns if number > 1 else 0

    def _path(self) -> Path | None:
        """Return the file of this rank's recording; None if this process is not recorded."""
        path: bytes | None = recorder().hvprof_rank_file()
        return Path(path.decode()) if path else None

    def _write(self, *found: Any, lost: int = 0) -> None:
        """Write the timeline of `found` steps, activities and calls, without the lost steps."""
        path = self._path()
        if path is not None:
            rank = int(path.stem.removeprefix("rank-"))
            timeline = Timeline(rank, self._first + lost, self._last, self._seen, *found)
            write(path.with_suffix(SUFFIX), timeline)

    def _give_up(self, error: Exception) -> None:
        print(f"hvprof: steps are not recorded by torch.profiler: {error}", file=sys.stderr)
        self._close()
        with contextlib.suppress(Exception):
            self._write()

    def _close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._profile = None
        if self._marked in MARKED_STEP:
            MARKED_STEP.remove(self._marked)
