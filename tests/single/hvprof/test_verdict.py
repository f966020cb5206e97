"""The report's first sentences, for programs of which the cause is known."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from hvprof.analysis.analysis import Analysis
from hvprof.analysis.sites import SiteCost
from hvprof.model import Cell, RankRecording, Recording
from hvprof.reporters.page.html import report_page
from hvprof.reporters.page.sections.base import Page
from hvprof.reporters.run_verdict import run_sentences
from hvprof.reporters.terminal.terminal import render
from hvprof.reporters.verdict import verdict

RUN_S = 10.0


def cell(operation: str, time_s: float, size: int, traffic: str = "data") -> Cell:
    return Cell(
        operation=operation,
        algorithm="native",
        traffic=traffic,
        source="mpi",
        size=size,
        low_bytes=8,
        high_bytes=8,
        calls=100,
        message_bytes=800,
        time_s=time_s,
        min_s=time_s / 200,
        max_s=time_s / 50,
        wait_s=None,
    )


def said(in_mpi_s: list[float], cores: int = 8, traffic: str = "data") -> str:
    """The verdict for ranks that run 10 s and spend these times in sendrecv."""
    return verdict(analysis("sendrecv", in_mpi_s, [0.01] * len(in_mpi_s), cores, traffic))


def analysis(
    operation: str,
    in_mpi_s: list[float],
    in_barrier_s: list[float],
    cores: int = 8,
    traffic: str = "data",
    other: str = "barrier",
) -> Analysis:
    ranks = tuple(
        RankRecording(
            rank=rank,
            size=len(in_mpi_s),
            host="node1",
            pid=1,
            state="finalized",
            start_unix_s=100.0,
            end_unix_s=100.0 + RUN_S,
            recorder_cost_s=1e-7,
            dropped_calls=0,
            mpi_library="",
            cells=(
                cell(operation, time_s, len(in_mpi_s)),
                cell(other, in_barrier_s[rank], len(in_mpi_s), traffic),
            ),
            host_cores=cores,
        )
        for rank, time_s in enumerate(in_mpi_s)
    )
    return Analysis(Recording(Path("a"), ranks))


def test_the_rank_that_computes_longest_is_named() -> None:
    text = said([1.0, 6.0])
    assert text.startswith("MPI takes 35 % of the run (3.51 s of 10 s a rank, 10 to 60 % by rank)")
    assert "rank 0: it spends 8.99 s outside of MPI and the others 3.99 s" in text
    assert "The largest part is sendrecv (3.5 s a rank)" in text


@pytest.mark.parametrize("in_mpi_s", [[3.0, 3.0], [3.0, 3.1], [9.9, 9.8]])
def test_an_even_program_blames_nobody(in_mpi_s: list[float]) -> None:
    assert "Rank" not in said(in_mpi_s)
    assert "wait for rank" not in said(in_mpi_s)


def test_horovods_threads_are_not_taken_for_computing() -> None:
    text = said([1.0, 6.0], traffic="control")
    assert text.startswith("Horovod's threads exchange data for 3.5 s a rank in a run of 10 s")
    assert "wait for rank" not in text


def test_control_traffic_is_horovods_where_there_is_horovod() -> None:
    for operation, whose in (("barrier", True), ("irecv", False), ("sendrecv", False)):
        found = analysis("allreduce", [3.0, 4.0], [0.5, 0.5], traffic="control", other=operation)
        stream = StringIO()
        render(found, Console(file=stream, width=160))
        page = report_page(Page(found))
        texts = (stream.getvalue(), page[page.index("<body") : page.index('"application/json"')])
        for text in texts:
            assert ("Horovod" in text) == whose, operation
            assert ("monitored barriers" in text) != whose, operation


def test_more_ranks_than_cores_are_noticed() -> None:
    crowded = "4 ranks share 2 cores of node1: time in MPI includes waiting for a core."
    assert crowded in said([3.0] * 4, cores=2)
    assert "cores" not in said([3.0] * 4, cores=4)
    assert "cores" not in said([3.0] * 4, cores=0)


def test_a_recording_without_traffic_says_so() -> None:
    silent = RankRecording(0, 1, "node1", 1, "exited", 1.0, 2.0, 0.0, 0, "", ())
    assert verdict(Analysis(Recording(Path("a"), (silent,)))) == "No traffic was recorded."


def test_the_gain_of_a_quicker_root_is_what_the_others_wait_for_it() -> None:
    # A scatter takes its root longer anyway: the barrier alone shows who is waited for.
    scattered = analysis("scatter", [1.0, 6.0, 6.0, 6.0], [0.1, 0.6, 0.6, 0.6])
    (advice,) = scattered.advice
    assert advice.title == "Give rank 0 less work, or see what delays it"
    assert "it spends 8.9 s outside of MPI and the others 3.4 s" in advice.evidence
    assert advice.most_s == pytest.approx(5.5)
    assert "it saves at most 55 % of the run" in verdict(scattered)


def test_the_place_is_named_with_its_share_of_mpis_time() -> None:
    cause = analysis("recv", [1.0, 6.0], [0.01, 0.01]).cause
    assert cause is not None

    def named(time_s: float) -> str:
        site = SiteCost("recv", "halo.c:212 (swap)", 1, 100, time_s, 6.0, 0.1, 3.0, 30.0)
        return next(run_sentences(cause, [site]))

    assert (
        "(3.51 s of 10 s a rank, 10 to 60 % by rank; 100 % of it in MPI_Recv at halo.c:212): "
        in (named(3.5))
    )
    assert "; 50 % of it in MPI_Recv at halo.c:212)" in named(1.755)
    # Ranks wait somewhere else, such as in MPI_Finalize.
    assert "MPI_Recv" not in named(0.1)
