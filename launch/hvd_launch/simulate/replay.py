"""Runs smpirun over traces, and reads the time that they took. SimGrid simulates; this does not."""

from __future__ import annotations

import os
import re
import resource
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system.process import TIMED_OUT, run_to_end
from hvd_launch.simulate import trace
from hvd_launch.simulate.platform import SCALE, Platform

_TIME = re.compile(r"Simulation time ([0-9.]+)")
_SETTINGS = {
    # Bandwidths and latencies were measured, so SimGrid must not reduce them for protocols.
    "smpi/bw-factor": "0:1",
    "smpi/lat-factor": "0:1",
    "network/crosstraffic": "no",
    "network/TCP-gamma": "0",
    # A replay measures no code; otherwise smpirun asks for the speed of this machine.
    "smpi/host-speed": "1f",
    # Ranks that replay need little of a stack; KiB.
    "contexts/stack-size": "128",
}
_QUIET = ("--log=root.thresh:warning", "--log=smpi_replay.thresh:info")
# Files that smpirun has open besides the ranks' traces.
_OTHER_FILES = 64
_TIMEOUT_S = 6 * 3600.0


def check_installed() -> None:
    """Raise an HvdExtError that says how to install smpirun, if it is missing."""
    if shutil.which("smpirun") is None:
        raise HvdExtError(
            "smpirun: command not found: a simulation needs SimGrid's SMPI, in Debian's and "
            "Ubuntu's package libsimgrid-dev"
        )


def time_s(
    platform: Platform,
    nodes: int,
    ranks_per_node: int,
    algorithm: str,
    message_bytes: int,
    link_share: float = 1.0,
) -> float:
    """Simulated seconds of one allreduce by one of hvd_ext's algorithms.

    Raises:
        HvdExtError: no smpirun, or it failed.
        UsageError: the trace would be too large, or the topology cannot have this many nodes.
    """
    check_installed()
    size = nodes * ranks_per_node
    with tempfile.TemporaryDirectory(prefix="hvd-simulate-") as folder:
        listed, _ = trace.write(
            Path(folder) / "trace", algorithm, size, message_bytes, platform.eager_bytes
        )
        return replay(platform, nodes, ranks_per_node, listed, link_share=link_share)


def replay(
    platform: Platform, nodes: int, ranks_per_node: int, listed: Path, link_share: float = 1.0
) -> float:
    """Simulated seconds until the last rank of a trace is done.

    Args:
        platform: the cluster.
        nodes: number of nodes that have ranks.
        ranks_per_node: number of ranks on a node; they fill a node before the next.
        listed: names each rank's file, a line each.
        link_share: share of the links' bandwidth that these ranks have.

    Raises:
        HvdExtError: no smpirun, or it failed; the message has its reason.
    """
    _allow_files(nodes * ranks_per_node + _OTHER_FILES)
    words = ["-replay", str(listed)]
    output = smpirun(platform, nodes, ranks_per_node, listed.parent, words, link_share)
    found = _TIME.search(output)
    if found is None:
        raise HvdExtError(f"smpirun printed no time: {_reason(output)}")
    return float(found[1]) / SCALE


def smpirun(
    platform: Platform,
    nodes: int,
    ranks_per_node: int,
    folder: Path,
    words: Sequence[str],
    link_share: float = 1.0,
    preloaded: Path | None = None,
) -> str:
    """Run smpirun in `folder` with these additional words, and return its output.

    Its programs load `preloaded`, a library in `folder`, before all others.

    Raises:
        HvdExtError: no smpirun, or it failed; the message has its reason.
    """
    check_installed()
    size = nodes * ranks_per_node
    description, hosts = folder / "platform.xml", folder / "hosts"
    description.write_text(platform.xml(nodes, ranks_per_node, link_share))
    hosts.write_text("".join(f"node{rank // ranks_per_node}\n" for rank in range(size)))
    command = ["smpirun", "-no-privatize", "-np", str(size)]
    command += ["-platform", str(description), "-hostfile", str(hosts)]
    settings = {**_SETTINGS, **platform.host_costs()}
    command += [f"--cfg={name}:{value}" for name, value in settings.items()]
    env = {**os.environ, "LD_PRELOAD": f"./{preloaded.name}"} if preloaded else os.environ
    done = run_to_end([*command, *_QUIET, *words], env, _TIMEOUT_S, folder)
    if done.returncode == TIMED_OUT:
        raise HvdExtError(f"smpirun took more than {_TIMEOUT_S / 3600:g} hours for {size} ranks")
    if done.returncode != 0:
        raise HvdExtError(f"smpirun ended with code {done.returncode}: {_reason(done.stdout)}")
    return done.stdout


def _allow_files(count: int) -> None:
    """Let a child open as many files as there are ranks: each rank's trace is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise UsageError(
                f"{count - _OTHER_FILES} ranks need {count} open files, and this process may have "
                f"{hard}: raise `ulimit -n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _reason(output: str) -> str:
    """The line of smpirun's output that says what was wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"CRITICAL|ERROR|rror:|xception", line)]
    return (errors or lines or ["it printed nothing"])[0]
