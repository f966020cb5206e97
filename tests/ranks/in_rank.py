"""What each rank of a tests' job runs: pytest, on the tests that it is given.

Arguments: the job's folder, and pytest's.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from tests.ranks.job import STACKS_SIGNAL


class Told:
    """A pytest plugin: runs tests on request, and sends their reports back."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._reports: list[Any] = []
        self._errors: list[str] = []
        self._nodes: dict[Path, Any] = {}
        self._collected: set[Any] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._errors.append(report.longreprtext)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        return True  # modules are collected on request

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        connection = Client(str(self._socket))
        connection.send((MPI.COMM_WORLD.rank, os.getpid()))
        self._serve(connection, session)
        return True

    def _serve(self, connection: Connection, session: pytest.Session) -> None:
        tests: dict[str | None, pytest.Item] = {}
        while (request := connection.recv()) is not None:
            if request[0] == "collect":
                tests |= {item.nodeid: item for item in self._collect(session, Path(request[1]))}
                connection.send("\n".join(self._errors))
                self._errors.clear()
                continue
            _, test, following = request
            run = session.config.hook.pytest_runtest_protocol
            run(item=tests[test], nextitem=tests.get(following))
            sys.stdout.flush()
            to_data = session.config.hook.pytest_report_to_serializable
            connection.send([to_data(config=session.config, report=r) for r in self._reports])
            self._reports.clear()

    def _collect(self, session: pytest.Session, module: Path) -> list[pytest.Item]:
        """The tests of a module. A folder is one node: its conftest's fixtures belong to that."""
        root = session.config.rootpath
        if not self._nodes:
            self._nodes[root] = pytest.Dir.from_parent(session, path=root)
        for path in reversed(module.relative_to(root).parents):
            folder = self._nodes[root / path]
            if folder not in self._collected:
                self._collected.add(folder)
                report = folder.ihook.pytest_make_collect_report(collector=folder)
                session.ihook.pytest_collectreport(report=report)
                self._nodes |= {node.path: node for node in report.result or ()}
        items = list(session.genitems(self._nodes[module]))
        session.testscollected += len(items)
        return items

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        # Dots and summaries are for the process that has all ranks' reports.
        config.pluginmanager.unregister(name="terminalreporter")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # Failures were told; the job's exit code tells of what is not a test's.
        if exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.OK


def main(folder: Path, arguments: list[str]) -> int:
    # A file for each rank: nothing is lost when it dies, and nothing is mixed.
    rank = MPI.COMM_WORLD.rank
    output = os.open(folder / f"rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.register(STACKS_SIGNAL)
    options = ["-s", "-p", "no:ranks_from_outside", "-p", "no:cacheprovider"]
    options += ["-p", "pytest_timeout", "-o", "timeout=0"]  # the limit is the job's
    options += ["--basetemp", str(folder / f"tmp-{rank}")]
    return int(pytest.main([*options, *arguments], [Told(folder / "socket")]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
