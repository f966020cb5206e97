"""Runs a job to its end, line by line, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hvd_ext.system.process import dying_with_parent, end_tree
from hvd_launch.job_settings import job_settings
from hvd_launch.machine import rank_command
from hvd_launch.settings import Setting
from hvd_launch.tune.common.target import Target

_LAST_LINES = 12
# A launcher that must stop needs a moment to stop the ranks on other hosts.
_GRACE_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        code: its exit code; None if its time was up.
    """

    code: int | None
    wall_s: float
    last: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Return why it failed, in one line; its last lines follow."""
        how = "timed out" if self.code is None else f"ended with code {self.code}"
        return "\n".join([f"{how} after {self.wall_s:.0f} s; its last lines:", *self.last])


def run(
    target: Target,
    command: Sequence[str],
    settings: Iterable[Setting],
    timeout_s: float,
    read: Callable[[str], None],
) -> Outcome:
    """Run `command` on every rank; `read` gets each line that the job prints.

    The ranks get the variables that `hvd-launch run` would set, and then `settings`. The job ends
    with this call, also after an exception.
    """
    usual = job_settings(target.backend.library, os.environ).given
    settings = (*usual, *settings)
    launch = rank_command(target.backend, target.size, command, target.hosts, settings)
    start_s = time.monotonic()
    last: deque[str] = deque(maxlen=_LAST_LINES)
    process = subprocess.Popen(
        launch.argv,
        env=launch.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Ctrl-C is for this process, which then ends the job.
        start_new_session=True,
        preexec_fn=dying_with_parent(),
    )
    try:
        ended = _follow(process, start_s + timeout_s, last, read)
    finally:
        end_tree(process, _GRACE_S)
        assert process.stdout is not None
        process.stdout.close()
    code = process.returncode if ended else None
    return Outcome(code, time.monotonic() - start_s, tuple(last))


def _follow(
    process: subprocess.Popen[bytes],
    deadline_s: float,
    last: deque[str],
    read: Callable[[str], None],
) -> bool:
    """Pass the lines on until the job ends (True) or its time is up (False)."""
    assert process.stdout is not None
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left_s := deadline_s - time.monotonic()) > 0:
            if not selector.select(left_s):
                continue
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            # Progress bars end their lines with a carriage return.
            *lines, pending = (pending + chunk).replace(b"\r", b"\n").split(b"\n")
            if not chunk and pending:
                lines, pending = [pending], b""
            for line in filter(None, (raw.decode(errors="replace").strip() for raw in lines)):
                last.append(line)
                read(line)
            if not chunk:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline_s - time.monotonic()))
                return process.poll() is not None
    return False
