"""The variables of torchrun, as each launcher's own say them."""

from __future__ import annotations

import socket

import pytest

from hvd_launch.backends import slurm
from hvd_launch.job import Host
from hvd_launch.machine import meeting_place
from hvd_launch.rank.environment import rank_info
from hvd_launch.rank.torchrun import torchrun_variables

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HYDRA = {"PMI_RANK": "5", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
MVAPICH2 = {
    "MV2_COMM_WORLD_RANK": "5",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "4",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2,4(x2)",
}


@pytest.mark.parametrize("launcher", [OPENMPI, HYDRA, MVAPICH2, SLURM], ids="/".join)
def test_a_ranks_variables_are_those_of_its_launcher(launcher: dict[str, str]) -> None:
    here = rank_info(launcher)
    assert here is not None
    assert torchrun_variables({"RANK": "77"}, here, 10, "node1", 20123) == {
        "RANK": "5",
        "WORLD_SIZE": "10",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "node1",
        "MASTER_PORT": "20123",
    }


def test_the_place_that_a_person_has_set_is_kept_and_what_nobody_says_is_left_out() -> None:
    here = rank_info({"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0"})
    assert here is not None
    place = {"MASTER_ADDR": "other", "MASTER_PORT": "1234"}
    variables = torchrun_variables(place, here, 2, "node1", 20123)
    assert variables == {**place, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("hosts", "environ", "host"),
    [
        ((), {}, "127.0.0.1"),
        ((Host("node1", 4),), {}, "127.0.0.1"),
        ((Host("node1", 4), Host("node2", 4)), {}, "node1"),
        ((), {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"}, "127.0.0.1"),
        (
            (),
            {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[03-05]"},
            "n03",
        ),
    ],
)
def test_ranks_meet_on_the_host_of_rank_0(
    hosts: tuple[Host, ...], environ: dict[str, str], host: str
) -> None:
    assert meeting_place(hosts, environ, ("train.py",))[0] == host


def test_the_port_is_free_and_the_same_for_the_same_job() -> None:
    first, again, other = (
        int(meeting_place((), {}, job)[1]) for job in (("a", "b"), ("a", "b"), ("ab",))
    )
    assert first == again != other
    with socket.socket() as taken:
        taken.bind(("", first))
        taken.listen()
        assert int(meeting_place((), {}, ("a", "b"))[1]) != first


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node1", "node1"), ("n[03-05,8],big1", "n03"), ("a-b.c,d", "a-b.c"), ("", None)],
)
def test_the_first_host_of_an_allocation(nodes: str, first: str | None) -> None:
    assert slurm.first_host({"SLURM_JOB_NODELIST": nodes}) == first
