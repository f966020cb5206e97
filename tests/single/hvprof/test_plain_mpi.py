"""The report on a program that has neither Horovod nor steps: its own operations, in its words."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from hvprof.analysis.analysis import Analysis
from hvprof.model import Cell, RankRecording, Recording
from hvprof.reporters.page.html import report_page
from hvprof.reporters.page.sections.base import Page
from hvprof.reporters.terminal.terminal import render


def cell(operation: str, time_s: float, calls: int, message_bytes: int) -> Cell:
    return Cell(
        operation=operation,
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


CELLS = (
    cell("waitall", 6.0, 1200, 0),
    cell("isend", 0.1, 1200, 1 << 22),
    cell("irecv", 0.1, 1200, 1 << 22),
    cell("bcast", 0.5, 10, 1 << 22),
    cell("allreduce", 0.01, 10, 8),
)
RANKS = tuple(
    RankRecording(n, 2, "a", 1, "finalized", 100.0, 110.0, 1e-7, 0, "MPI 1", CELLS)
    for n in range(2)
)


def test_it_leads_with_its_own_operations() -> None:
    analysis = Analysis(Recording(Path("a"), RANKS, command=("mpirun", "./a.out")))
    page = report_page(Page(analysis))
    text = page[page.index("<body") : page.index('type="application/json"')]
    for foreign in ("Horovod", "hvd_ext", "hvprof.step", "gradient", "training thread"):
        assert foreign not in text, foreign
    assert "in waitall per rank" in text
    assert "Bcast time by message size" in text
    assert "Allreduce time by message size" not in text
    stream = StringIO()
    render(analysis, Console(file=stream, width=120))
    (waitall,) = [line for line in stream.getvalue().splitlines() if line.startswith("waitall")]
    assert waitall.split()[:3] == ["waitall", "-", "1200"]
    assert "Horovod" not in stream.getvalue()
