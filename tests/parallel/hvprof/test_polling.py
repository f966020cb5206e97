"""Ranks that ask again and again whether a message is there wait for it."""

from __future__ import annotations

from pathlib import Path

from hvprof.analysis.analysis import Analysis
from hvprof.analysis.waiting.call_costs import call_costs, operation_costs
from tests.support.hvprof.hanging import cause_of, job
from tests.support.hvprof.recorded import record, record_code


def test_polling_is_waiting_and_seldom_tests_are_not(tmp_path: Path) -> None:
    recording = record(tmp_path / "run", 4, "polls.py")
    spent_s = [
        {cell.operation: cell.time_s for cell in rank.cells if cell.traffic == "data"}
        for rank in recording.ranks
    ]
    assert spent_s[0]["test"] > 0.5
    assert spent_s[1]["iprobe"] > 0.5
    # Between its tests this one does something else.
    assert spent_s[2]["test"] < 0.5
    cause = Analysis(recording).cause
    assert cause is not None
    assert not {0, 1}.intersection(cause.ranks)


def test_a_loop_of_tests_waits_for_its_source(tmp_path: Path) -> None:
    with job(tmp_path / "run", 3, "late", program="polls.py"):
        cause = cause_of(tmp_path / "run", "late")
    assert cause.ranks == (2,)
    # One of the two may have polled for a shorter time.
    assert {*cause.waiting} <= {0, 1}


REQUESTS = """
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
other = 1 - comm.rank
for _ in range(10):
    receive, send = comm.Irecv(np.empty(1000), other, 1), comm.Isend(np.ones(1000), other, 1)
    while not MPI.Request.Testany([receive])[1]:
        pass
    send.Wait()
def several(count, each):
    receives = [comm.Irecv(np.empty(each), other, 2) for _ in range(count)]
    return receives + [comm.Isend(np.ones(each), other, 2) for _ in range(count)]
MPI.Request.Waitall(several(2, 100_000))
MPI.Request.Waitall(several(100, 10))
left = several(4, 500)
while left:
    ended = MPI.Request.Waitsome(left)
    left = [one for place, one in enumerate(left) if place not in ended]
"""


def test_a_call_waits_for_the_bytes_of_its_own_requests(tmp_path: Path) -> None:
    recording = record_code(tmp_path / "run", 2, REQUESTS)
    waited = {
        cost.operation: (cost.messages, round(cost.total_bytes))
        for cost in operation_costs(recording, call_costs(recording))
    }
    assert waited["testany"] == (10, 80_000)
    assert waited["wait"] == (10, 80_000)
    assert waited["waitall"] == (204, 4 * 800_000 + 200 * 80)
    assert waited["waitsome"] == (8, 8 * 4000)
    for rank in recording.ranks:
        assert not any(cell.message_bytes for cell in rank.cells if cell.ended)
