"""Host lists and hostfiles, good and hostile."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.errors import UsageError
from hvd_launch import machine
from hvd_launch.backends.libraries import Backend, exported_names
from hvd_launch.job import Host, parse_hostfile, parse_hosts

HOSTILE = st.text(alphabet="ab1.-_:,=; $\"'@#४\n\tslot", max_size=24)


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
    with pytest.raises(UsageError, match="invalid host"):
        parse_hosts(text)


def test_a_hostfile_is_read_in_each_librarys_form() -> None:
    text = "# two racks\nnode1 slots=4\nnode2:2  # half\n\nnode3\nnode3\n"
    assert parse_hostfile(text, "F") == (Host("node1", 4), Host("node2", 2), Host("node3", 2))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no host"),
        ("# nothing\n", "names no host"),
        ("n1 slots=4\nn2 slots=\n", "F, line 2: invalid host 'n2 slots='"),
        ("n1 slots=4 extra\n", "line 1"),
        ("n1 max_slots=4\n", "line 1"),
        ("n1:2 slots=2\n", "line 1"),
        ("n1;reboot\n", "'n1;reboot'"),
        ("n1 slots=4\nn1 slots=2\n", "names 'n1' twice"),
    ],
)
def test_a_hostfile_with_an_error_names_the_line(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_hostfile(text, "F")


@given(HOSTILE)
def test_no_host_name_carries_a_character_that_a_shell_or_mpirun_minds(text: str) -> None:
    for read in (parse_hosts, lambda text: parse_hostfile(text, "F")):
        try:
            hosts = read(text)
        except UsageError:
            continue
        for host in hosts:
            assert shlex.quote(host.name) == host.name
            assert not host.name.startswith("-")
            assert ":" not in host.name
            assert host.slots >= 1


def test_mpirun_rsh_is_told_this_machine_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """By "localhost" it would want an sshd."""
    monkeypatch.setattr(machine.socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(machine, "cores", lambda: 2)
    backend = Backend("mvapich2", (2, 3), "mpirun_rsh", "mpirun_rsh")
    for hosts in ((), (Host("localhost", 2),)):
        argv = machine.rank_command(backend, 3, ["true"], hosts, environ={}).argv
        assert argv[1:] == ("-np", "3", "node7", "node7", "node7", "true")
    argv = machine.rank_command(backend, 2, ["true"], (Host("n1", 2),), environ={}).argv
    assert argv[1:] == ("-np", "2", "n1", "n1", "true")


def test_device_visibility_stays_on_its_own_host() -> None:
    away = "HOME XPATH CUDA_VISIBLE_DEVICES MV2_VISIBLE_DEVICES MV2_COMM_WORLD_RANK"
    along = "PATH CUDA_CACHE_PATH HVPROF_DIR MV2_CUDA_IPC I_MPI_PIN"
    environ = dict.fromkeys((away + " " + along).split(), "")
    assert exported_names(environ) == tuple(sorted(along.split()))
