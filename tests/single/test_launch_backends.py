"""hvd-launch's command, from real version texts, without any MPI."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.errors import HvdExtError, UsageError
from hvd_launch.backends import Backend, recognise
from hvd_launch.job import Host, Job, exported_names, parse_hosts

OPENMPI_4 = """mpirun (Open MPI) 4.1.8

Report bugs to http://www.open-mpi.org/community/help/
"""
OPENMPI_5 = """mpirun (Open MPI) 5.0.11

Report bugs to https://www.open-mpi.org/community/help/
"""
MPICH_5 = """HYDRA build details:
    Version:                                 5.0.2
    Release Date:                            Fri Sep 25 20:45:26 UTC 2026
    CC:                              cc
    Configure options:                       --with-device=ch4:ucx,ofi --with-pm=hydra:gforker
    Process Manager:                         pmi
    Launchers available:                     ssh rsh fork slurm ll lsf sge manual persist
    Topology libraries available:            hwloc
    Resource management kernels available:   user slurm ll lsf sge pbs cobalt
    Demux engines available:                 poll select
"""


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        (OPENMPI_4, Backend("openmpi", (4, 1, 8))),
        (OPENMPI_5, Backend("openmpi", (5, 0, 11))),
        ("orterun (OpenRTE) 4.1.4\n", Backend("openmpi", (4, 1, 4))),
        ("mpirun (Open MPI) 5.0.0rc12\n", Backend("openmpi", (5, 0, 0))),
        (MPICH_5, Backend("mpich", (5, 0, 2))),
    ],
)
def test_recognises_a_library_by_its_own_words(text: str, backend: Backend) -> None:
    assert recognise(text) == backend


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mpirun (Open MPI) 3.1.6\n",
        "mpirun (Closed MPI) 4.1.8\n",
        "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240701\n",
        "HYDRA build details:\n",
    ],
)
def test_an_unknown_library_is_quoted(text: str) -> None:
    with pytest.raises(HvdExtError, match="hvd-launch knows"):
        recognise(text)


def job(size: int = 4, hosts: str = "", slots: int = 8, as_root: bool = False) -> Job:
    places = parse_hosts(hosts) if hosts else ()
    return Job(size, places, slots, ("LD_PRELOAD", "PATH"), as_root, ("python", "a b.py"))


def test_open_mpi() -> None:
    assert shlex.join(recognise(OPENMPI_5).arguments(job())) == (
        "-np 4 --bind-to none --map-by slot -x LD_PRELOAD -x PATH python 'a b.py'"
    )
    crowded = job(size=4, hosts="n1:2,n2", slots=3, as_root=True)
    assert shlex.join(recognise(OPENMPI_4).arguments(crowded)) == (
        "--allow-run-as-root -np 4 --host n1:2,n2:1 --oversubscribe"
        " --bind-to none --map-by slot -x LD_PRELOAD -x PATH python 'a b.py'"
    )


def test_mpich_has_no_flag_for_root_or_for_more_ranks_than_slots() -> None:
    crowded = job(size=4, hosts="n1:2,n2", slots=3, as_root=True)
    assert shlex.join(recognise(MPICH_5).arguments(crowded)) == (
        "-np 4 -hosts n1:2,n2:1 -bind-to none -genvall python 'a b.py'"
    )


def test_hosts() -> None:
    assert parse_hosts("node1:4,10.0.0.2,a-b.c_d:1") == (
        Host("node1", 4),
        Host("10.0.0.2", 1),
        Host("a-b.c_d", 1),
    )


@pytest.mark.parametrize(
    "text",
    ["", "n1,", "n1:0", "n1:-2", "n1:x", "n1:2:3", "-n1", "n1;id", "$(id)", "n 1", "n1\n", "n1:४"],
)
def test_what_is_no_host_is_quoted(text: str) -> None:
    with pytest.raises(UsageError, match="is no host"):
        parse_hosts(text)


@given(st.text(alphabet="ab1.-_:,; $\"'@४\n", max_size=12))
def test_no_host_name_carries_a_character_that_a_shell_or_mpirun_minds(text: str) -> None:
    try:
        hosts = parse_hosts(text)
    except UsageError:
        return
    for host in hosts:
        assert shlex.quote(host.name) == host.name
        assert not host.name.startswith("-")
        assert ":" not in host.name
        assert host.slots >= 1


def test_device_visibility_stays_on_its_own_host() -> None:
    environ = dict.fromkeys(
        ["PATH", "HOME", "CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "HVPROF_DIR", "XPATH"], ""
    )
    assert exported_names(environ) == ("CUDA_CACHE_PATH", "HVPROF_DIR", "PATH")
