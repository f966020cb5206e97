"""Where jobs run in containers: what these keep apart is kept apart here by unshare.

Docker, Apptainer and Kubernetes themselves are not started.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from testbed.emulated_hosts import INTERFACE, EmulationError, Hosts, emulated_hosts
from tests.support.launch.launching import BIN, ROOT, rank_environment, run_to_end
from tests.support.launch.on_every_mpi import hvd_launch

TRAIN = [sys.executable, str(ROOT / "tests" / "programs" / "optimizer" / "where_gradients_meet.py")]
SMALL = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
APART = ["unshare", "--user", "--map-root-user"]
SHARED = "each its shard straight from its peers' memory"
# What Open MPI's ranks of different containers need, which cannot copy from each other.
NO_CMA = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}


def needs(*command: str) -> None:
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{command[0]}: {done.stderr.strip()}")


def train(
    start: Sequence[str], ranks: Sequence[str] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    command = [*start, *hvd_launch("run", "-np", "2", "--", *ranks, *TRAIN)]
    return run_to_end(command, rank_environment(env), 90)


def test_containers_need_no_dev_shm_and_may_keep_files_apart() -> None:
    """Docker and Kubernetes give 64 MiB; here it is less than the gradients."""
    small = ["unshare", "--mount", "sh", "-c", SMALL, "sh"]
    needs(*small)
    done = train(small, ["unshare", "--mount"])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(SHARED) == 2, done.stdout


@pytest.mark.long
def test_a_container_for_each_rank_is_told_and_works() -> None:
    needs(*APART)
    done = train([], APART, **NO_CMA)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Horovod's own") == 2, done.stdout
    told = "a peer's memory: Permission denied: start a node's ranks inside one container"
    assert done.stdout.count(told) == 1, done.stdout


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    try:
        with emulated_hosts(2, gbit=1) as hosts:
            yield hosts
    except EmulationError as error:
        pytest.skip(str(error))


def on(hosts: Hosts, tmp_path: Path, *arguments: str, **env: str) -> str:
    """What a job printed that was started beside the hosts, as on a head node."""
    agent = tmp_path / "agent.sh"
    enter = ROOT / "testbed" / "enter_host.sh"
    agent.write_text(f'#!/bin/sh\n[ "$1" = -o ] && shift 2\nexec {enter} "$@"\n')
    agent.chmod(0o755)
    variables = {
        **hosts.environment(),
        "OMPI_MCA_plm_rsh_agent": str(agent),
        "OMPI_MCA_btl_tcp_if_include": INTERFACE,
        "OMPI_MCA_btl": "tcp,vader,self",
        "OMPI_MCA_pml": "ob1",
    }
    command = ["nsenter", "-t", str(hosts.pids[-1]), "--uts", "--net"]
    command += hvd_launch("run", *arguments, "--", *TRAIN)
    done = run_to_end(command, rank_environment({**variables, **env}), 120)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.long
def test_a_container_on_each_host(hosts: Hosts, tmp_path: Path) -> None:
    """Open MPI's daemon runs inside, so that all ranks of a host are in one container."""
    places = ",".join(f"{name}:2" for name in hosts.names)
    inside = {"OMPI_MCA_orte_launch_agent": " ".join([*APART, str(BIN / "orted")])}
    printed = on(hosts, tmp_path, "-np", "4", "-H", places, **inside)
    for name in hosts.names:
        assert printed.count(f"{name}: ") == 2, printed
    assert printed.count(SHARED) == 4, printed


# How its variables are read: tests/single/launch/test_operator.py.
@pytest.mark.long
def test_an_mpi_operators_job(hosts: Hosts, tmp_path: Path) -> None:
    """The launcher's variables tell hosts, slots and the way there; nothing else is said."""
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"{name} slots=1\n" for name in hosts.names))
    printed = on(
        *(hosts, tmp_path),
        OMPI_MCA_orte_default_hostfile=str(hostfile),
        OMPI_MCA_orte_keep_fqdn_hostnames="true",
        OMPI_MCA_plm_rsh_args="-o ConnectionAttempts=10",
    )
    for name in hosts.names:
        assert printed.count(f"{name}: ") == 1, printed
