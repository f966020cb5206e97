"""Jobs that take turns: one at a time, and none outlives its launcher."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvd_ext.process import descendants
from testbed import turns
from testbed.ranks import ROOT, JobError, environment

COMMAND = [sys.executable, str(ROOT / "tests" / "programs" / "takes_turns.py")]
LAUNCHER = [sys.executable, str(ROOT / "tests" / "programs" / "launches_turns.py"), *COMMAND]


def test_a_job_rests_while_another_has_its_turn() -> None:
    with (
        turns.job("a", COMMAND, environment(), size=1) as a,
        turns.job("b", COMMAND, environment(), size=1) as b,
    ):
        jobs = (a, b, a, b, a)
        answers = [job.turn("work")[0] for job in jobs]
        a.end()
        b.end()
    spans = [tuple(answer[:2]) for answer in answers]
    assert all(one[1] < other[0] for one, other in itertools.pairwise(spans))
    of_a, of_b = answers[4][2:], answers[3][2:]
    assert any(spans[2][0] < t < spans[2][1] for t in of_a)
    for began_s, ended_s in (spans[1], spans[3]):
        assert not any(began_s < t < ended_s for t in of_a)
    assert not any(spans[2][0] < t < spans[2][1] for t in of_b)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("fail", "^b failed: ValueError: this rank was told to fail$"),
        ("die", "^b ended too soon:\n(.*\n)*last words"),
    ],
)
def test_a_failure_is_told_and_ends_every_job(task: str, said: str) -> None:
    with (
        turns.job("a", COMMAND, environment(), size=1) as a,
        turns.job("b", COMMAND, environment(), size=1) as b,
    ):
        a.turn("work")
        b.turn("work")
        started = descendants(os.getpid())
        assert len(started) >= 4
        with pytest.raises(JobError, match=said):
            b.turn(task)
    assert not any(map(alive, started))


def test_a_turn_that_takes_too_long_is_told() -> None:
    with (
        pytest.raises(JobError, match=r"^a took more than 0.1 s for a turn$"),
        turns.job(
            "a",
            [sys.executable, "-c", "import time; time.sleep(60)"],
            environment(),
            2,
            timeout_s=0.1,
        ) as a,
    ):
        a.turn("work")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_job_ends_with_its_launcher(number: signal.Signals) -> None:
    launcher = subprocess.Popen(LAUNCHER, env=environment(), stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    started = [int(word) for word in launcher.stdout.readline().split()]
    assert len(started) >= 2
    assert any(state(pid) == "T" for pid in started)
    launcher.send_signal(number)
    launcher.wait()
    deadline = time.monotonic() + 20
    while any(map(alive, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, started))


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    return state(pid) not in "ZX"
