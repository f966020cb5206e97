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

from hvd_ext.system.process import descendants
from testbed import turns
from testbed.ranks import ROOT, JobError, environment

COMMAND = [sys.executable, str(ROOT / "tests" / "programs" / "job" / "takes_turns.py")]
LAUNCHER = [
    sys.executable,
    str(ROOT / "tests" / "programs" / "job" / "launches_turns.py"),
    *COMMAND,
]


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


def test_ranks_of_two_hosts_may_have_the_same_process_id() -> None:
    rank = (
        "import os; os.getpid = lambda: 7\n"
        "from testbed.turns import take_turns\n"
        "take_turns(lambda: str.upper)"
    )
    both = (
        "import subprocess, sys\n"
        "command = [sys.executable, '-c', sys.argv[1]]\n"
        "ranks = [subprocess.Popen(command) for _ in range(2)]\n"
        "sys.exit(max(rank.wait() for rank in ranks))"
    )
    command = [sys.executable, "-c", both, rank]
    with turns.job("a", command, environment(), size=2, timeout_s=60) as a:
        assert a.turn("work") == ["WORK", "WORK"]
        a.end()


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


def test_a_job_that_knows_of_no_turns_goes_on_for_a_while(tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    counts = (
        "import sys, time\n"
        "with open(sys.argv[1], 'w') as file:\n"
        "    for _ in range(1000):\n"
        "        time.sleep(0.001)\n"
        "        print(time.monotonic(), file=file, flush=True)\n"
    )
    with turns.job("a", [sys.executable, "-c", counts, str(ticks)], environment(), size=1) as a:
        while not ticks.exists() or not ticks.read_text():
            assert a.go_on_for(0.1)
        rested_s = time.monotonic()
        time.sleep(0.2)
        went_on_s = time.monotonic()
        assert not a.go_on_for(60)
    times_s = [float(line) for line in ticks.read_text().splitlines()]
    assert len(times_s) == 1000
    assert times_s[0] < rested_s
    assert times_s[-1] > went_on_s
    assert not any(rested_s < t < went_on_s for t in times_s)


def test_a_job_that_fails_as_it_goes_on_is_told() -> None:
    fails = [sys.executable, "-c", "print('last words', flush=True); raise SystemExit(3)"]
    with (
        turns.job("a", fails, environment(), size=1) as a,
        pytest.raises(JobError, match=r"^a failed:\n(.*\n)*last words"),
    ):
        a.go_on_for(60)


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
