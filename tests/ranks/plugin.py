"""Tests that run on ranks: `@pytest.mark.ranks(2, 3)` runs one on 2 and on 3.

    @pytest.mark.ranks(2, 3)
    def test_sum(comm):
        parallel_assert(comm, comm.allreduce(1) == comm.size)

Each is a test of its own for each number of ranks, which may be a `pytest.param`. All ranks
run the same one at a time; it has failed if it fails on any, and the failure names the ranks.
A rank that dies or hangs ends its job within `timeout_s` (120), or soon after the test has
failed on another rank; the tests that are left get a new one. Tests with the same number of
ranks share a job, those of other modules too. Further arguments of the marker: `env`, the
ranks' variables; `launcher`, "hvd-launch" or "horovodrun". The module itself is imported outside
the ranks too: it must not start MPI.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tests.ranks.job import Job, JobError, JobSpec
from tests.ranks.merge import failure, merge

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.job.topology import Topology

# A rank that has imported torch holds some 0.4 GiB.
_MOST_WAITING = 12
# Their ranks, which take seconds to start, serve no test elsewhere.
_RANKS_OF_THEIR_OWN = ("tests/parallel/standalone/",)


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> int:
    """How many ranks run the test."""
    return request.param


@pytest.fixture
def comm() -> Iterator[MPI.Comm]:
    """All ranks, in a communicator of the test's own."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    yield comm
    comm.Free()


@pytest.fixture
def topology() -> Iterator[Topology]:
    """All ranks, and which of them share memory."""
    from mpi4py import MPI

    from hvd_ext.job.topology import discover

    topology = discover(MPI.COMM_WORLD, 30)
    yield topology
    topology.close()


@pytest.fixture(scope="module")
def hvd() -> Iterator[ModuleType]:
    """hvd_ext.torch, started, with one thread for each rank."""
    import torch
    from mpi4py import MPI

    import hvd_ext.torch as hvd
    from hvd_ext.torch import reducers
    from hvd_ext.torch.job import background

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        # Beside other tests, an idle thread of Horovod's would hardly ever run.
        patch.setattr(reducers, "lower_thread_priority", lambda: None)
        patch.setattr(background, "give_way_from_start", lambda: None)
        hvd.init()
        yield hvd
        MPI.COMM_WORLD.Barrier()  # who ends first ends Horovod for all
        hvd.shutdown()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Tests side by side: one process has all tests of as many ranks, or all others of a file."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            if found := re.search(r"\b(\d+)ranks\b", test):
                own = next(filter(file.startswith, _RANKS_OF_THEIR_OWN), "")
                return f"{own}{found[1]} ranks"
            return file

    return Scheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    line = 'ranks(*numbers, env=None, launcher="hvd-launch", timeout_s=120): run on so many ranks'
    config.addinivalue_line("markers", line)
    # Blocked by name where this is a rank.
    config.pluginmanager.register(FromOutside(config), "ranks_from_outside")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if marker := metafunc.definition.get_closest_marker("ranks"):
        if "ranks" not in metafunc.fixturenames:
            metafunc.fixturenames.append("ranks")
        metafunc.parametrize("ranks", marker.args, ids="{}ranks".format, indirect=True)


def spec_of(item: pytest.Item | None) -> JobSpec | None:
    """The job that a test needs; None if it runs in this process."""
    marker = item.get_closest_marker("ranks") if item else None
    if item is None or marker is None:
        return None
    options = marker.kwargs
    env = tuple(sorted(options.get("env", {}).items()))
    number = item.callspec.params["ranks"]  # type: ignore[attr-defined]
    return JobSpec(number, options.get("launcher", "hvd-launch"), env)


class FromOutside:
    """Runs marked tests by jobs, which wait for the next module once a module is done."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        # The one that was used last stands last.
        self._jobs: dict[JobSpec, Job] = {}
        self._not_started: dict[tuple[JobSpec, Path], str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Within a module, tests of one job come together."""
        order: dict[Any, int] = {}
        for item in items:
            order.setdefault(item.path, len(order))
            order.setdefault((item.path, spec_of(item)), len(order))
        items.sort(key=lambda item: (order[item.path], order[item.path, spec_of(item)]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        spec = spec_of(item)
        if spec is None:
            if nextitem is None:
                for report in self._end(item, 0):
                    item.ihook.pytest_runtest_logreport(report=report)
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._run(item, spec, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        # A test before this one left standing what it shares with this one, such as the folder.
        item.session._setupstate.teardown_exact(nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(
        self, item: pytest.Item, spec: JobSpec, nextitem: pytest.Item | None
    ) -> Iterator[pytest.TestReport]:
        same = nextitem is not None and nextitem.path == item.path and spec_of(nextitem) == spec
        following = nextitem if same else None
        start = time.monotonic()
        try:
            job = self._start(spec, item.path)
        except JobError as error:
            self._not_started[spec, item.path] = f"not run: no job of {spec.ranks} ranks, see above"
            yield failure(item, "setup", str(error))
            return
        start_s = time.monotonic() - start
        marker = item.get_closest_marker("ranks")
        limit_s = marker.kwargs.get("timeout_s", 120) if marker else 120
        result = job.run(item.nodeid, following.nodeid if following else None, limit_s)
        for report in merge(item, spec.ranks, result):
            if report.when == "setup":
                report.duration += start_s
            yield report
        if following is None:
            yield from self._end(item, 0 if nextitem is None else _MOST_WAITING)

    def _start(self, spec: JobSpec, module: Path) -> Job:
        """A job for these tests, unless there is one."""
        if (spec, module) in self._not_started:
            raise JobError(self._not_started[spec, module])
        job = self._jobs.pop(spec, None)
        if job is None or job.ended:
            job = Job(spec, module, self._options())
        self._jobs[spec] = job
        job.collect(module)
        return job

    def _options(self) -> list[str]:
        """Node ids and tracebacks in the ranks are as here."""
        config = self._config
        ini = ["-c", str(config.inipath)] if config.inipath else []
        verbose = ["-v"] * config.get_verbosity()
        return ["--rootdir", str(config.rootpath), *ini, *verbose, f"--tb={config.option.tbstyle}"]

    def _end(self, item: pytest.Item, most_waiting: int) -> Iterator[pytest.TestReport]:
        """Let the jobs end that were not used for longest, until so many ranks are left."""
        while sum(spec.ranks for spec in self._jobs) > most_waiting:
            job = self._jobs.pop(next(iter(self._jobs)))
            try:
                if not job.ended:
                    job.end()
            except JobError as error:
                yield failure(item, "teardown", str(error))

    def pytest_sessionfinish(self) -> None:
        """A run that was broken off leaves no job."""
        for job in self._jobs.values():
            if not job.ended:
                job.kill()
