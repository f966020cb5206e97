"""The hosts themselves: apart from each other, on links of the speed asked for, and gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from testbed.emulated_hosts import EmulationError, emulated_hosts
from tests.cluster.conftest import namespaces_of, wait_until_empty
from tests.support.launch.launching import ROOT

STAY = """
import time
from testbed.emulated_hosts import emulated_hosts
with emulated_hosts(2, 1) as hosts:
    print(*hosts.pids, flush=True)
    time.sleep(60)
"""


def on(pid, *command):
    enter = ["nsenter", "-t", str(pid), "--uts", "--net", "--ipc", "--mount", "--pid"]
    return subprocess.run([*enter, *command], capture_output=True, text=True, check=True).stdout


def test_hosts_share_nothing_but_links_of_the_speed_asked_for(build):
    with build(2) as hosts:
        first, second, switch = hosts.pids
        assert [on(pid, "hostname").strip() for pid in (first, second)] == ["host0", "host1"]
        on(first, "touch", "/dev/shm/here")
        assert on(second, "ls", "/dev/shm") == ""
        assert len(on(second, "ls", "/proc").split()) < len(os.listdir("/proc"))  # noqa: PTH208
        for pid in (first, second):
            assert "tbf" in on(pid, "tc", "qdisc", "show", "dev", "eth0")
        for port in ("port0", "port1"):
            assert "rate 1Gbit" in on(switch, "tc", "qdisc", "show", "dev", port)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_stays_behind_whatever_ends_their_maker(build, how):
    with build(1):
        pass  # skips where hosts cannot be had
    maker = subprocess.Popen(
        [sys.executable, "-c", STAY], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert maker.stdout is not None
    namespaces = namespaces_of([int(pid) for pid in maker.stdout.readline().split()])
    assert len(namespaces) == 3
    maker.send_signal(how)
    maker.communicate(timeout=30)
    wait_until_empty(namespaces)


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulationError, match="need iproute2 and util-linux"), emulated_hosts(1, 1):
        pass
