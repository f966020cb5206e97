"""Advice that depends on what was recorded: the MPI library, the cause."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hvd_ext.system import mpi_libraries
from hvprof.analysis.analysis import Analysis
from hvprof.model import Cell, RankRecording, Recording, Step
from hvprof.reporters.verdict import verdict


@pytest.mark.parametrize(
    ("library", "name", "variable", "reaches"),
    [
        ("Open MPI v4.1.8, package: Open MPI", "openmpi4", "OMPI_MCA_coll_tuned", "mpirun -x OMPI"),
        ("Open MPI v5.0.9, package: Open MPI", "openmpi5", "OMPI_MCA_coll_tuned", "mpirun -x OMPI"),
        ("MPICH Version:      5.0.1\ufffdMPICH", "mpich", "MPIR_CVAR_ALLREDUCE", "env MPIR_CVAR"),
        (
            "Intel(R) MPI Library 2021.16",
            "intelmpi",
            "I_MPI_ADJUST_ALLREDUCE",
            "env I_MPI",
        ),
        ("MVAPICH2 Version      :\ufffd2.3.7", "mvapich2", "MV2_INTER_ALLREDUCE", "env MV2_INTER"),
        ("MVAPICH Version\ufffd:\ufffd3.0", "mvapich", "MPIR_CVAR_ALLREDUCE", "env MPIR_CVAR"),
        ("Another MPI 1.0", "", "hvd-launch tune allreduce", "hvd-launch tune allreduce -np 2"),
    ],
)
def test_a_setting_is_the_recorded_librarys(
    library: str, name: str, variable: str, reaches: str
) -> None:
    known = mpi_libraries.recognise(library.replace("\ufffd", " "))
    assert (known.name if known else "") == name
    cells = [cell(1 << 20, 10, 1.0), cell(1 << 25, 10, 1.0)]
    ranks = tuple(
        RankRecording(n, 2, "ab"[n], 1, "finalized", 1.0, 11.0, 0.0, 0, library, tuple(cells))
        for n in range(2)
    )
    recording = Recording(Path("a"), ranks, command=("mpirun", "-np", "2", "./program"))
    (advice,) = [one for one in Analysis(recording).advice if "algorithm" in one.title]
    assert variable in advice.setting
    assert reaches in advice.command
    assert ("OMPI_" in advice.setting) == name.startswith("openmpi")


def cell(message_bytes: int, calls: int, time_s: float) -> Cell:
    return Cell(
        operation="allreduce",
        algorithm="native",
        traffic="data",
        source="mpi",
        size=2,
        low_bytes=message_bytes,
        high_bytes=message_bytes,
        calls=calls,
        message_bytes=calls * message_bytes,
        time_s=time_s,
        wait_s=None,
        min_s=time_s / calls,
        max_s=time_s / calls,
    )


def trained(message_bytes: int, calls: int, *, source: str = "torch") -> Analysis:
    """A training of 100 steps whose allreduces take 4 of 10 s, none of it hidden."""
    one = dataclasses.replace(
        cell(message_bytes, calls, 4.0),
        source=source,
        algorithm="gloo" if source == "torch" else "shared_memory",
    )
    steps = Step(100, 0.0, 10.0, 0.0, 4.0, 0.0, 0.0, 6.0)
    ranks = tuple(
        RankRecording(
            *(n, 2, "a", 1, "finalized", 1.0, 11.0, 0.0, 0, "Open MPI v4.1.8", (one,)),
            step_count=100,
            all_steps=steps,
        )
        for n in range(2)
    )
    return Analysis(Recording(Path("a"), ranks, command=("mpirun", "-np", "2", "./train.py")))


@pytest.mark.parametrize("source", ["torch", "hvd_ext"])
def test_gradients_that_are_sent_one_by_one_are_fused_first(source: str) -> None:
    titles = [one.title for one in trained(4096, 30_000, source=source).advice]
    assert titles == ["Fuse small messages into larger ones"]


def test_smaller_buckets_are_no_advice_where_buckets_are_small() -> None:
    large = trained(1 << 24, 1000, source="hvd_ext").advice
    assert [one.title for one in large] == ["Hide communication behind backward"]
    assert "HVD_EXT_BUCKET_BYTES=1MiB" in large[0].command
    assert not trained(112 << 10, 90_000, source="hvd_ext").advice
    (of_ddp,) = trained(1 << 24, 1000).advice
    assert "bucket_cap_mb" in of_ddp.setting
    (of_ddp,) = trained(112 << 10, 90_000).advice
    assert "attach(model)" in of_ddp.setting
    assert "bucket_cap_mb" not in of_ddp.setting


def test_a_program_that_does_not_train_is_advised_to_overlap() -> None:
    (advice,) = trained(1 << 24, 1000, source="mpi").advice
    assert advice.title == "Overlap communication with computation"
    assert "MPI_Iallreduce" in advice.setting


def test_no_more_communication_is_hidden_than_there_is_time_behind_which() -> None:
    analysis = trained(1 << 24, 1000)
    shorter = tuple(
        dataclasses.replace(one, all_steps=Step(100, 0.0, 10.0, 0.0, 9.0, 0.0, 0.0, 1.0))
        for one in analysis.recording.ranks
    )
    (advice, *_) = Analysis(dataclasses.replace(analysis.recording, ranks=shorter)).advice
    assert advice.title == "Hide communication behind backward"
    assert advice.most_s == pytest.approx(1.0)


def test_hidden_communication_is_spoken_of_only_where_it_costs() -> None:
    """Of 10 s of steps, computing waits for threads that communicate for 1 ms or for 1 s."""
    said = []
    for slowed_s in (0.001, 1.0):
        steps = Step(100, 0.0, 10.0, 6.0, 4.0, 1.0, 0.0, 0.0, 2.0, slowed_s, 0.0, 2 * slowed_s)
        one = trained(1 << 24, 1000).recording
        ranks = tuple(
            dataclasses.replace(rank, all_steps=steps, cores=1, host_cores=2) for rank in one.ranks
        )
        said.append(verdict(Analysis(dataclasses.replace(one, ranks=ranks))))
    assert ["Hidden communication is not free" in text for text in said] == [False, True]
