"""A job of ranks that wait for tests: each runs the one it is given, and sends back its reports.

The ranks talk to this process over a socket, not over MPI: a rank that has died or hangs in a
collective is seen from outside, and the tests have MPI to themselves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from hvd_ext.system.process import dying_with_parent, end_tree
from tests.support.launch.launching import LAUNCHERS, rank_environment

# On a loaded machine the garbage collection at the end of a rank alone may take half a minute.
START_LIMIT_S, END_LIMIT_S = 120.0, 120.0
# How much longer the others may take once the test has failed on one rank.
GRACE_S = 10.0
# On this signal a rank prints where it is, and goes on.
STACKS_SIGNAL, _STACKS_S = signal.SIGUSR1, 1.0
# Its plugins take longer to load than the ranks to start; the options are those of in_rank.
_PYTEST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}


class JobError(Exception):
    """The job could not be started, or did not end as it should; says what was printed."""


class JobSpec(NamedTuple):
    """What a job is started with; tests with the same one share a job."""

    ranks: int
    launcher: str
    env: tuple[tuple[str, str], ...]


@dataclass
class Result:
    """What became of a test.

    Attributes:
        reports: of the ranks that ended it, one for each phase, as pytest serializes them.
        lost: of the other ranks, why there is none.
        printed: what a rank printed meanwhile; under None, the launcher.
    """

    reports: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    printed: dict[int | None, str] = field(default_factory=dict)


class Job:
    """Ranks of one launcher; `ended` once it is of no more use.

    Its ranks load the conftest files beside `module` when they start, and import it when
    `collect` says so.
    """

    def __init__(self, spec: JobSpec, module: Path, pytest_arguments: Iterable[str]) -> None:
        self.spec, self.ended = spec, False
        self._modules: list[Path] = []
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        folder = Path(self._folder.name)
        self._printed = {rank: folder / f"rank-{rank}" for rank in range(spec.ranks)}
        self._launcher_printed = folder / "launcher"
        self._ranks: dict[int, Connection] = {}
        self._pids: dict[int, int] = {}
        program = [sys.executable, "-m", "tests.ranks.in_rank", str(folder), str(module)]
        with (
            socket.socket(socket.AF_UNIX) as listener,
            self._launcher_printed.open("w") as output,
        ):
            listener.bind(str(folder / "socket"))
            listener.listen(spec.ranks)
            self._process = subprocess.Popen(
                [*LAUNCHERS[spec.launcher](spec.ranks), *program, *pytest_arguments],
                env=rank_environment({**_PYTEST, **dict(spec.env)}),
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=dying_with_parent(),
            )
            try:
                self._accept(listener)
            except BaseException:
                self.kill()
                raise

    def _accept(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while len(self._ranks) < self.spec.ranks:
            if wait([listener], 0.2):
                connection = Connection(listener.accept()[0].detach())
                rank, pid = connection.recv()
                self._ranks[rank], self._pids[rank] = connection, pid
            elif self._process.poll() is not None or time.monotonic() > deadline:
                missing = sorted(set(self._printed) - set(self._ranks))
                raise JobError(f"ranks {missing} did not start:\n{self._everything()}")

    def collect(self, module: Path) -> None:
        """Have all ranks import a module of tests, once; JobError if one of them cannot."""
        if module in self._modules:
            return
        for connection in self._ranks.values():
            connection.send(("collect", str(module)))
        try:
            for rank, connection in self._ranks.items():
                error = connection.recv() if connection.poll(START_LIMIT_S) else "it does not end"
                if error:
                    raise JobError(f"rank {rank} cannot collect the tests:\n{error}")
        except BaseException:
            self.kill()
            raise
        self._modules.append(module)

    def run(self, test: str, following: str | None, limit_s: float) -> Result:
        """Have all ranks run a test; `following` is the one after it, if it is theirs too."""
        result, begins = Result(), {r: p.stat().st_size for r, p in self._printed.items()}
        pending, start = dict(self._ranks), time.monotonic()
        deadline = start + limit_s
        for connection in pending.values():
            with contextlib.suppress(OSError):  # it has died: there is nothing to receive
                connection.send(("run", test, following))
        while pending and (left_s := deadline - time.monotonic()) > 0:
            ready = wait(pending.values(), left_s)
            for rank in [rank for rank, connection in pending.items() if connection in ready]:
                try:
                    reports = result.reports[rank] = pending.pop(rank).recv()
                    failed = any(report["outcome"] == "failed" for report in reports)
                except (EOFError, OSError):
                    result.lost[rank], failed = "the process ended", True
                if failed:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        waited_s = time.monotonic() - start
        result.lost |= dict.fromkeys(pending, f"still in the test after {waited_s:.0f} s")
        if result.lost:
            self._ask_where(pending)
            self.kill()
            result.printed[None] = self._launcher_printed.read_text(errors="replace")
        for rank, begin in begins.items():
            result.printed[rank] = self._printed[rank].read_bytes()[begin:].decode(errors="replace")
        if self.ended:
            self._folder.cleanup()
        return result

    def _ask_where(self, ranks: dict[int, Connection]) -> None:
        """Have ranks that hang print their stacks."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[rank], STACKS_SIGNAL)
        time.sleep(_STACKS_S if ranks else 0)

    def end(self) -> None:
        """Let the ranks leave; JobError if not all did so with exit code 0."""
        for connection in self._ranks.values():
            with contextlib.suppress(OSError):  # it has died: the exit code tells
                connection.send(None)
        try:
            code: int | str = self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._ask_where(self._ranks)
            code = f"none after {END_LIMIT_S:.0f} s"
        self.kill()
        printed = self._everything()
        self._folder.cleanup()
        if code != 0:
            ran = ", ".join(module.name for module in self._modules)
            raise JobError(f"after {ran} the job ended with exit code {code}:\n{printed}")

    def kill(self) -> None:
        """End all processes, whatever they do."""
        self.ended = True
        end_tree(self._process)

    def _everything(self) -> str:
        paths = [self._launcher_printed, *self._printed.values()]
        texts = {path.name: path.read_text(errors="replace") for path in paths if path.exists()}
        return "\n".join(f"-- {name} --\n{text}" for name, text in texts.items() if text)
