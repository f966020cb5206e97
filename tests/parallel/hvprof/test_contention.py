"""What hidden communication costs, by the kernel's counters, on a program that knows the cost."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
from dataclasses import dataclass

import pytest

import hvprof
from hvprof.analysis.contention import step_parts
from tests.support.hvprof.recorded import PROGRAMS, RECORD, mpirun, own_mpi, run

# They need a core that no other test uses.
pytestmark = pytest.mark.long
_ATTEMPTS = 10
_QUIET_S = 0.01  # off the core, of a step that computes for 0.1 s


@dataclass(frozen=True)
class Contended:
    """A recording, and what the program's own clocks say of each step.

    Attributes:
        queued_s: off the core while the thread computed.
        other_s: CPU time of the thread that communicates.
        blocked_s: off the core in the region "exposed".
    """

    recording: hvprof.Recording
    queued_s: list[float]
    other_s: list[float]
    blocked_s: list[float]

    @property
    def blamed(self) -> float:
        """The share of the queue that communication can have caused: other programs run too."""
        return min(1.0, sum(self.other_s) / sum(self.queued_s))


def about(seconds: float) -> object:
    """Clocks that are read one after another, with interrupts that are nobody's."""
    return pytest.approx(seconds, rel=0.12, abs=0.01)


@pytest.fixture(scope="module")
def contended(tmp_path_factory: pytest.TempPathFactory) -> Contended:
    folder = tmp_path_factory.mktemp("contended")
    mpi = own_mpi()
    program = folder / "known_contention"
    source = PROGRAMS / "known_contention.c"
    subprocess.run([mpi / "mpicc", "-O1", "-pthread", source, "-o", program], check=True)
    # Other programs may use the core too, and are not what is tested.
    first = ["nice", "-n", "-20"] if os.geteuid() == 0 else []
    for attempt in range(_ATTEMPTS):
        recorded = folder / f"run{attempt}"
        done = run([*first, *RECORD, "-o", recorded, "--", *mpirun(1, mpi), program])
        assert done.returncode == 0, done.stderr
        rows = [list(map(float, row.split())) for row in re.findall(r"step (.*)", done.stdout)]
        recording = hvprof.load(recorded)
        if not recording.ranks[0].knows_queue:
            pytest.skip("this kernel has no schedstat of threads")
        # In every second step nothing communicates.
        if all(queued_s + blocked_s < _QUIET_S for queued_s, _, blocked_s in rows[::2]):
            return Contended(recording, *map(list, zip(*rows, strict=True)))
    pytest.skip(f"other programs used the core in each of {_ATTEMPTS} runs")


def test_the_kernels_queue_is_that_of_the_programs_clocks(contended: Contended) -> None:
    (rank,) = contended.recording.ranks
    told = (contended.queued_s, contended.other_s, contended.blocked_s)
    for step, queued_s, other_s, blocked_s in zip(rank.steps, *told, strict=True):
        assert step.queued_s == about(queued_s)
        assert step.queued_blocked_s == about(blocked_s)
        assert step.communicating_s == about(other_s)
        assert step.cpu_s == about(0.1)
        assert step.process_s >= step.cpu_s + step.communicating_s - 0.001
    # The core is shared in every second step.
    assert all(step.preemptions > 0 and step.communicating_s > 0.03 for step in rank.steps[1::2])


def test_a_step_is_split(contended: Contended) -> None:
    parts = step_parts(contended.recording)
    assert parts is not None
    assert parts.slowed_s is not None
    assert parts.waiting_s is not None
    sums = (parts.compute_s, parts.slowed_s, parts.exposed_s, parts.io_s, parts.waiting_s)
    assert sum(sums) + parts.other_s == pytest.approx(parts.time_s)
    assert parts.compute_s == about(0.08)
    queued_s = statistics.fmean(contended.queued_s)
    assert parts.slowed_s == about(queued_s * contended.blamed)
    assert parts.slowed_s + parts.waiting_s == about(queued_s)


def test_free_communication_leaves_what_is_not_communications(contended: Contended) -> None:
    free = hvprof.Analysis(contended.recording).free_speedup
    assert free is not None
    assert free.knows_queue
    assert free.low <= free.speedup <= free.high
    times_s, without_s = [], []
    for queued_s, blocked_s in zip(contended.queued_s, contended.blocked_s, strict=True):
        times_s.append(0.1 + queued_s + blocked_s)
        without_s.append(0.08 + queued_s * (1 - contended.blamed))
    expected = statistics.median(times_s) / statistics.median(without_s)
    assert free.speedup == pytest.approx(expected, rel=0.1)
