"""hvprof watch next to jobs that start, train, end and die."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import hvprof
from hvprof.analysis.analysis import Analysis
from hvprof.format.counters import read_counters
from hvprof.format.reader import read_head
from testbed.cpu_quota import QuotaError, cpu_quota
from tests.support.hvprof.recorded import ENVIRONMENT, PROGRAMS, RECORD, mpirun, run
from tests.support.hvprof.watching import PATIENCE_S, WATCH, watched


@contextlib.contextmanager
def job(directory: Path, ranks: int, how: str) -> Iterator[Callable[[], None]]:
    """A recorded job that runs during the block, or until the block calls what it gets."""
    end = directory.with_name("end")
    program = [sys.executable, str(PROGRAMS / "trains.py"), how, str(end)]
    command = [*RECORD, "-o", str(directory), "--", *mpirun(ranks), *program]
    started = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        yield end.touch
        end.touch()
        started.wait(PATIENCE_S)
    finally:
        end.touch()
        if started.poll() is None:
            started.terminate()
            started.wait(60)


def until(directory: Path, file: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not (directory / file).exists() and time.monotonic() < end_s:
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["slow", pytest.param("unmarked", marks=pytest.mark.long)])
def test_a_reading_shows_steps_times_and_the_slowest_rank(how: str, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    with job(run_folder, 3, how):
        until(run_folder, "rank-00002.now")
        done = run([*WATCH, run_folder, "--once", "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    read = json.loads(done.stdout)
    assert [one["rank"] for one in read["ranks"]] == [0, 1, 2]
    for one in read["ranks"]:
        assert one["interval_s"] > 1.5
        assert one["mpi_s"] + one["outside_s"] == pytest.approx(one["interval_s"])
        assert (one["steps_s"] is None) == (how == "unmarked")
    allreduce = next(one for one in read["operations"] if one["operation"] == "allreduce")
    assert allreduce["bytes_s"] == pytest.approx(800_000 * allreduce["calls_s"])
    assert allreduce["algbw_gb_s"] > 0
    if how == "slow":
        assert read["slowest"] == 1
        step = read["step"]
        parts = sum(step[f"{name}_s"] for name in ("compute", "exposed", "io", "other"))
        assert step["time_s"] == pytest.approx(parts, rel=1e-3)
        assert step["compute_s"] > 0.01
        # The report of the run gives the same reason, from the same parts of the steps.
        advice = Analysis(hvprof.load(run_folder)).advice
        found = next(one for one in advice if one.title.startswith("Find what delays rank 1"))
        for said in (read["slowest_why"], found.evidence):
            assert "it sleeps or waits outside of communication" in said


@pytest.mark.parametrize(("how", "said"), [("slow", "with code 0"), ("dies", "rank 1 is gone")])
def test_watching_begins_before_the_job_and_ends_with_it(
    how: str, said: str, tmp_path: Path
) -> None:
    run_folder = tmp_path / "run"
    with job(run_folder, 2, how) as end:
        until(run_folder, "meta.json")
        code, lines, errors = watched(
            run_folder, "since the last reading", 2, end, "--every", "0.5"
        )
    assert code == 0, errors
    assert "Traceback" not in errors
    *readings, last = lines
    assert last.startswith(f"{run_folder}: the job has ended")
    assert said in last or "with code" in last
    assert "\x1b" not in "".join(lines)
    assert max(map(len, readings)) <= 80 + len(str(run_folder))


def test_no_torn_counter_is_read_while_a_job_counts(tmp_path: Path) -> None:
    """At most one call is not added to its bytes yet, and every step is whole."""
    run_folder, calls, read = tmp_path / "run", 0, 0
    with job(run_folder, 2, "small"):
        until(run_folder, "rank-00001.now")
        end_s = time.monotonic() + PATIENCE_S
        while read < 100 and time.monotonic() < end_s:
            counters = read_counters(run_folder / "rank-00001.hvprof")
            for one in counters.counts if counters else ():
                if one.operation == "allreduce" and one.calls > calls:
                    assert 8 * one.calls - one.message_bytes in (0, 8)
                    calls = one.calls
                    read += 1
            if counters and counters.steps:
                step = counters.steps
                parts_s = step.compute_s + step.exposed_s + step.io_s + step.other_s
                assert parts_s == pytest.approx(step.time_s, rel=1e-6)
    assert read >= 100


def test_a_page_shows_a_job_and_stays_when_it_has_ended(tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    serve = [*WATCH, str(run_folder), "--serve", "0", "--every", "0.5"]
    with job(run_folder, 2, "slow") as end:
        until(run_folder, "rank-00001.now")
        with (
            subprocess.Popen(serve, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as server,
            ExitStack() as stack,
        ):
            stack.callback(server.kill)  # if an assertion fails, the server would run for ever
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("hvprof: http://127.0.0.1:"), line
            url = line.split()[1]
            page = page_with(url, "slowest rank: 1")
            assert "<h2>Verdict</h2>" in page
            assert "last reading" in page
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"{url}../meta.json", timeout=10)
            end()
            page_with(url, "the job has ended")
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == 0


def test_a_quota_that_holds_a_rank_back_is_named(tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    with ExitStack() as stack:
        try:
            # On a busy machine the ranks have less time on a core, too.
            group = stack.enter_context(cpu_quota(0.05))
        except QuotaError as error:
            pytest.skip(str(error))
        with job(run_folder, 2, "busy") as end:
            until(run_folder, "rank-00001.now")
            head = read_head(run_folder / "rank-00001.hvprof")
            assert head
            (group / "cgroup.procs").write_text(str(head.pid))
            _, lines, _ = watched(run_folder, '"quota"', 2, end, "--json")
    readings = [json.loads(line) for line in lines]
    said = [one for read in readings for one in read["conditions"]]
    assert {(one["kind"], *one["ranks"]) for one in said} == {("quota", 1)}
    assert "the CPU quota of 0.05 cores on" in said[0]["what"]
    recording = hvprof.load(run_folder)
    for rank in recording.ranks:
        assert rank.machine
        assert 0.3 < rank.machine.clock_ghz < 10
        assert rank.machine.trials > 0
        assert rank.machine.tried_s > 0
    titles = [one.title for one in Analysis(recording).advice]
    assert any(title.startswith("Raise the CPU quota of") for title in titles)


def page_with(url: str, text: str) -> str:
    """The page once it contains a text."""
    end_s = time.monotonic() + PATIENCE_S
    page = ""
    while text not in page and time.monotonic() < end_s:
        with contextlib.suppress(HTTPError), urlopen(url, timeout=10) as answer:
            assert int(answer.headers["Refresh"]) >= 1
            page = answer.read().decode()
        time.sleep(0.1)
    assert text in page, re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)[
        :3000
    ]
    return page


def test_a_port_in_use_is_named_in_one_line(tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    (run_folder / "meta.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run([*WATCH, run_folder, "--serve", port])
    assert done.returncode == 2
    assert f"cannot serve on 127.0.0.1:{port}: Address already in use; use another" in done.stderr


def in_a_terminal(command: list[object]) -> tuple[int, str]:
    """Run a command whose output is a terminal; returns its code and what the terminal got."""
    ours, commands = os.openpty()
    with subprocess.Popen(
        [*map(str, command)], env=ENVIRONMENT, stdout=commands, stderr=commands
    ) as started:
        os.close(commands)
        got = b""
        with contextlib.suppress(OSError):  # once the last process has closed it
            while read := os.read(ours, 65536):
                got += read
    os.close(ours)
    return started.returncode, got.decode(errors="replace")


def test_a_job_is_shown_beneath_its_own_output(tmp_path: Path) -> None:
    code = "import sys, time; print('terminal', sys.stdout.isatty()); print('half', end='\\r'); "
    code += "from mpi4py import MPI; world = MPI.COMM_WORLD\n"
    code += "for _ in range(60): world.allreduce(1); time.sleep(0.1)\n"
    code += "print('é' * 3, 'done'); sys.exit(3)"
    command = [*RECORD, "--watch", "-o", tmp_path / "run", "--", sys.executable, "-c", code]
    ended, seen = in_a_terminal(command)
    assert ended == 3
    assert "terminal True" in seen
    assert "ééé done" in seen
    assert "since the last reading" in seen
    # The last reading stays, beneath the job's last line.
    assert seen.rindex("ééé done") < seen.rindex("since the last reading")
    assert "Traceback" not in seen


def test_without_a_terminal_a_line_says_how_to_watch(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run([*RECORD, "--watch", "-o", folder, "--", sys.executable, "-c", "print('done')"])
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert f"not a terminal: run hvprof watch {folder}" in done.stderr
