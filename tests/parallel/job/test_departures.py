"""A rank that has left: it is missed by what it had not entered, and by nothing else."""

from __future__ import annotations

import time

import pytest

from hvd_ext.job.departures import Departures
from hvd_ext.job.waiting import until
from tests.ranks.asserts import parallel_assert


@pytest.mark.ranks(2, 3)
def test_who_has_done_its_part_of_an_exchange_is_not_missed_in_it(comm):
    world, last = comm.Dup(), comm.size - 1
    departures = Departures(world)
    first, second = departures.add_watchdog(), departures.add_watchdog()
    departures.enter(first, 2 + comm.rank)
    departures.enter(second, 7)
    heard = True
    if comm.rank == last:
        departures.announce()
        time.sleep(0.1)
    else:
        heard = until(lambda: departures.ranks() == {last}, 30)
    parallel_assert(comm, heard, "nothing was heard")
    if comm.rank != last:
        assert departures.before(first, 2 + last) == set()
        assert departures.before(first, 3 + last) == {last}
        assert departures.before(second, 7) == set()
        assert departures.before(second, 8) == {last}
    departures.close()
    world.Barrier()
    world.Free()


ENDS = """
import threading
from mpi4py import MPI
from hvd_ext.job.departures import Departures
world = MPI.COMM_WORLD.Dup()
departures = Departures(world)
asked, ended = threading.Event(), threading.Event()
def ask():
    while not ended.is_set():
        departures.ranks()
        asked.set()
    print(departures.ranks())
    departures.announce()
asking = threading.Thread(target=ask)
asking.start()
asked.wait()
world.Barrier()
MPI.Finalize()
ended.set()
asking.join()
"""


def test_mpi_may_end_while_a_thread_asks_who_has_left(launch):
    done = launch(2, ["-c", ENDS], timeout=60)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("set()") == 2
