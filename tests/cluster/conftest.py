"""`launch_on(hosts, args)`: `launch`, on emulated hosts; `build`, the hosts alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from testbed.emulated_hosts import EmulationError, Hosts, emulated_hosts
from tests.support.launch.launching import BIN, rank_environment, run_to_end

Build = Callable[[int], AbstractContextManager[Hosts]]


def processes_in(namespaces: set[int]) -> set[int]:
    """Processes that live in one of these network namespaces."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if (process / "ns" / "net").stat().st_ino in namespaces:
                    found.add(int(process.name))
            except OSError:  # gone by now, or another user's
                continue
    return found


def namespaces_of(pids: Sequence[int]) -> set[int]:
    return {Path(f"/proc/{pid}/ns/net").stat().st_ino for pid in pids}


def wait_until_empty(namespaces: set[int]) -> None:
    """A namespace without a process is gone, and its interfaces with it."""
    deadline = time.monotonic() + 20
    while (left := processes_in(namespaces)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.fixture
def build() -> Build:
    """`with build(count) as hosts`; afterwards nothing of them may be left."""

    @contextmanager
    def build(count: int) -> Iterator[Hosts]:
        with ExitStack() as stack:
            try:
                hosts = stack.enter_context(emulated_hosts(count, gbit=1))
            except EmulationError as error:
                pytest.skip(str(error))
            namespaces = namespaces_of(hosts.pids)
            yield hosts
        wait_until_empty(namespaces)

    return build


@pytest.fixture
def launch_on() -> Callable[..., object]:
    """`launch_on(hosts, ranks_per_host, args)` runs `python *args` on every host."""

    def launch_on(
        hosts: Hosts,
        ranks_per_host: int | Sequence[int],
        args: Sequence[object],
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> object:
        command = hosts.mpirun(ranks_per_host, str(BIN / "mpirun"))
        variables = rank_environment({**hosts.environment(), **(env or {})})
        return run_to_end([*command, sys.executable, *map(str, args)], variables, timeout)

    return launch_on
