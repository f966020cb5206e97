"""Jobs that take turns, for contenders that differ by their environment.

Each contender is a separate job, launched once. It works when it is its turn; at all other
times its processes are stopped, for a library's background thread takes a core's time in a job
that waits, too.

    with turns.job("a", command, environment, size=2) as a:
        answers = a.turn({"steps": 4})  # what each rank made of it
        a.end()

A job's ranks call `take_turns`; or they know nothing of turns, and the job continues for a
while (`go_on_for`). Between a job and its launcher stands this module's `main`,
which is never stopped itself: it ends the job, stopped or not, when the launcher ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_ext import cli
from hvd_ext.errors import HvdExtError
from hvd_ext.system.files import write_json, write_text
from hvd_ext.system.process import descendants, started
from testbed.ranks import JobError, last_lines

_FOLDER = "HVD_EXT_TESTBED_TURNS"
# A rank that waits for its turn looks this often; so does the launcher for their answers, which
# shares the cores with what is timed: every 2 ms took it a tenth of one.
_POLL_S, _LAUNCHERS_POLL_S = 0.002, 0.05
_STOP_POLL_S = 0.0005
_END_S = 60.0


class Job:
    """A job that does nothing but on its turn."""

    def __init__(
        self, name: str, folder: Path, process: subprocess.Popen[str], size: int, timeout_s: float
    ) -> None:
        self.name = name
        self._folder = folder
        self._process = process
        self._size = size
        self._timeout_s = timeout_s
        self._turns = 0

    def turn(self, task: object) -> list[Any]:
        """Have every rank do a task, and stop the job when all have; returns their answers.

        Args:
            task: JSON, not null.

        Raises:
            JobError: a rank failed, or took too long.
        """
        self._go_on_with(task)
        answers = f"answer-{self._turns}-*.json"
        deadline_s = time.monotonic() + self._timeout_s
        while len(found := list(self._folder.glob(answers))) < self._size:
            self._check()
            if self._process.poll() is not None:
                raise JobError(f"{self.name} ended too soon:\n{self._last_lines()}")
            if time.monotonic() > deadline_s:
                raise JobError(f"{self.name} took more than {self._timeout_s:g} s for a turn")
            time.sleep(_LAUNCHERS_POLL_S)
        _stop(self._process.pid)
        self._turns += 1
        return [json.loads(path.read_text()) for path in found]

    def go_on_for(self, time_s: float) -> bool:
        """Continue a job, whatever it does, and stop it after a while; False if it ended.

        Raises:
            JobError: it failed.
        """
        _send(signal.SIGCONT, self._process.pid)
        try:
            self._process.wait(time_s)
        except subprocess.TimeoutExpired:
            _stop(self._process.pid)
            return True
        if self._process.returncode != 0:
            raise JobError(f"{self.name} failed:\n{self._last_lines()}")
        return False

    def end(self) -> None:
        """Have the ranks end.

        Raises:
            JobError: they failed, or do not end.
        """
        self._go_on_with(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._check()
        if self._process.returncode != 0:
            raise JobError(f"{self.name} did not end as it should:\n{self._last_lines()}")

    def _go_on_with(self, task: object) -> None:
        _send(signal.SIGCONT, self._process.pid)
        write_json(self._folder / f"task-{self._turns}.json", task)

    def _check(self) -> None:
        if failed := list(self._folder.glob("failed-*")):
            # Other ranks may fail because of the first.
            first = min(failed, key=lambda path: path.stat().st_mtime_ns)
            raise JobError(f"{self.name} failed: {first.read_text()}")

    def _last_lines(self) -> str:
        return last_lines((self._folder / "log").read_text(errors="replace"))


@contextlib.contextmanager
def job(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    size: int,
    timeout_s: float = 300.0,
) -> Iterator[Job]:
    """Launch a job; nothing of it outlives the block.

    Args:
        name: for errors.
        command: starts the ranks, which call `take_turns`.
        environment: of `testbed.ranks.environment`.
        size: number of ranks.
        timeout_s: for a turn, the first with all that the ranks do before it.
    """
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with (
            (folder / "log").open("w") as log,
            started(
                [sys.executable, "-m", "testbed.turns", *command],
                env={**environment, _FOLDER: text},
                stdout=log,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            yield Job(name, folder, process, size, timeout_s)


def take_turns(prepare: Callable[[], Callable[[Any], Any]]) -> None:
    """Be a rank of a job until the job is to end.

    Args:
        prepare: returns what gives each task's answer; both are JSON.
    """
    folder = Path(os.environ[_FOLDER])
    # Ranks on two emulated hosts may have the same process id.
    rank = secrets.token_hex(8)
    try:
        answer = prepare()
        for number in itertools.count():
            path = folder / f"task-{number}.json"
            while not path.exists():
                time.sleep(_POLL_S)
            if (task := json.loads(path.read_text())) is None:
                return
            write_json(folder / f"answer-{number}-{rank}.json", answer(task))
    except Exception as error:
        kind = "" if isinstance(error, HvdExtError) else f"{type(error).__name__}: "
        write_text(folder / f"failed-{rank}", f"{kind}{error}".partition("\n")[0])
        raise


def _send(number: signal.Signals, pid: int) -> None:
    """Send a signal to all that a process has started."""
    for child in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


def _stop(pid: int) -> None:
    """Stop all that a process has started, and return when they have stopped.

    A thread runs on until the one that takes the signal has a core, which may take a while.
    """
    _send(signal.SIGSTOP, pid)
    while any(map(_runs, descendants(pid))):
        time.sleep(_STOP_POLL_S)
        _send(signal.SIGSTOP, pid)  # a process may have started meanwhile


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "TtZX":
                return True
    return False


def main(command: Sequence[str]) -> int:
    """Run a job, and end it with this process: what is stopped ignores all but SIGKILL."""
    cli.exit_on_sigterm()
    with started(command) as process:
        try:
            return process.wait()
        finally:
            _send(signal.SIGCONT, os.getpid())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
