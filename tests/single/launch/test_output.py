"""Lines that come in pieces, and which rank failed first."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_launch.rank.relay import MARK, OUTPUT_MARK, Lines
from hvd_launch.run.output import ERRORS, LAST_LINES, OUTPUT, FailedRank, JobOutput, arrived

ROOT = Path(__file__).resolve().parents[3]
# A job without ranks: its launcher is a Python that runs the argument.
SUPERVISE = """
import os, sys
from hvd_launch.backends.libraries import Launch
from hvd_launch.run.supervise import run_job
sys.exit(run_job(Launch((sys.executable, "-uc", sys.argv[1]), dict(os.environ), 1), True, 30))
"""

# A rank's program that writes and ends while its relay looks at something else.
SLOW_LOOK = """
import os, pathlib, sys
from hvd_launch.rank.relay import run_reporting
go = pathlib.Path(sys.argv[1])
def look():
    if not go.exists():
        go.touch()
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
program = "import os, sys\\nwhile not os.path.exists(sys.argv[1]): pass\\nprint(7)"
run_reporting(sys.executable, ["python", "-c", program, sys.argv[1]], os.environ, 0, look=look)
"""


def test_what_a_program_writes_before_it_ends_is_relayed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SLOW_LOOK, str(tmp_path / "go")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=ROOT / "launch")
    assert done.stdout == "[0] 7\n", done.stderr


@given(st.lists(st.binary(max_size=9000), max_size=6))
def test_no_byte_of_a_line_is_lost_however_it_comes(pieces: list[bytes]) -> None:
    lines = Lines()
    got = [line for piece in pieces for line in lines.feed(piece)] + lines.end()
    text = b"".join(pieces)
    assert b"".join(got) == text.replace(b"\n", b"").replace(b"\r", b"")
    assert all(len(line) < 4096 and b"\n" not in line for line in got)


def test_empty_lines_and_progress_bars() -> None:
    lines = Lines()
    assert lines.feed(b"a\n\n10%\r20%\r\n") == [b"a", b"", b"10%", b"20%"]
    assert lines.feed(b"no end") == []
    assert lines.end() == [b"no end"]
    assert lines.feed(b"20%\r") == [b"20%"]
    assert lines.feed(b"\n") == []
    assert lines.feed(b"\n") == [b""]


def feed(*lines: bytes) -> tuple[JobOutput, bytes]:
    output = JobOutput()
    return output, b"".join(output.line(line + b"\n", ERRORS) for line in lines)


def test_the_first_rank_that_failed_is_shown_with_its_own_lines() -> None:
    output, shown = feed(
        b"[0] step 1",
        b"[1] step 1",
        b"[1] ValueError: boom",
        MARK + b"rank 1 exited with code 3",
        b"[0] horovod: rank 1 is gone",
        MARK + b"rank 0 exited with code 1",
        b"mpirun noticed that process rank 1",
    )
    assert output.failure == FailedRank(1, "exited with code 3", 3)
    assert output.last_lines(1) == [b"[1] step 1\n", b"[1] ValueError: boom\n"]
    assert shown.endswith(b"[0] horovod: rank 1 is gone\n")
    assert output.held == [b"mpirun noticed that process rank 1\n"]


def test_lines_that_stand_above_are_not_repeated() -> None:
    alone, _ = feed(b"[0] a", b"[1] ValueError", b"[1] boom", b"mpirun says so")
    assert alone.just_shown(1)
    assert not alone.just_shown(0)
    among, _ = feed(b"[1] ValueError", b"[0] a", b"[1] boom")
    assert not among.just_shown(1)


def test_only_so_many_lines_are_kept() -> None:
    output, _ = feed(*(b"[7] %d" % number for number in range(100)))
    assert output.last_lines(7)[0] == b"[7] %d\n" % (100 - LAST_LINES)
    assert len(output.last_lines(7)) == LAST_LINES
    assert output.last_lines(8) == []


def test_what_a_rank_prints_does_not_push_its_traceback_out() -> None:
    output, _ = feed(b"[7] ValueError: boom")
    for number in range(100):
        output.line(b"[7] step %d\n" % number, OUTPUT)
    assert output.last_lines(7)[-2:] == [b"[7] step 99\n", b"[7] ValueError: boom\n"]


@pytest.mark.parametrize(
    ("report", "failure"),
    [
        (b"rank 2 was killed by SIGSEGV", FailedRank(2, "was killed by SIGSEGV", 139)),
        (b"rank 2 was killed by signal 64", FailedRank(2, "was killed by signal 64", 192)),
        (b"rank x exited with code 3", None),
        (b"rank 2 exited with code ", None),
        (b"", None),
    ],
)
def test_reports(report: bytes, failure: FailedRank | None) -> None:
    assert feed(MARK + report)[0].failure == failure


# Real words of the libraries, from jobs whose rank 1 called MPI_Abort or left.
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD", None),
        (
            b"[1] Abort(43) on node 1 (rank 1 in comm 0): application called "
            b"MPI_Abort(MPI_COMM_WORLD, 43) - process 1",
            43,
        ),
        (b"[1] application called MPI_Abort(MPI_COMM_WORLD, 9) - process 1", 9),
        (b"srun: error: vm: task 1: Exited with exit code 42", 42),
        (
            b"[n1:mpispawn_0][child_handler] MPI process (rank: 1, pid: 9) exited with status 42",
            42,
        ),
    ],
)
def test_a_rank_that_could_not_report_is_found_in_the_librarys_words(
    line: bytes, code: int | None
) -> None:
    failure = feed(line)[0].failure
    assert failure is not None
    assert (failure.rank, failure.code) == (1, code)


@given(st.binary(max_size=200))
def test_no_line_upsets_it(line: bytes) -> None:
    output = JobOutput()
    output.line(line + b"\n", OUTPUT)
    output.line(MARK + line, ERRORS)


def test_a_line_is_told_from_the_stream_that_it_came_by() -> None:
    assert arrived(OUTPUT_MARK + b"[1] a\n", ERRORS) == (b"[1] a\n", OUTPUT)
    for line in (b"[1] " + OUTPUT_MARK + b"\n", b"[1] a\n", b"mpirun says so\n"):
        assert arrived(line, ERRORS) == (line, ERRORS)


def supervise(code: str, **how: Any) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'launch'}"}
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    return subprocess.Popen([sys.executable, "-c", SUPERVISE, code], env=env, **how)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(("ends", "code"), [("", 1), ("raise SystemExit(3)", 3)])
def test_a_full_disk_ends_no_job_and_is_no_success(ends: str, code: int, tmp_path: Path) -> None:
    done = tmp_path / "done"
    program = f"for n in range(30_000): print('[0] line', n)\nopen({str(done)!r}, 'x')\n{ends}"
    with Path("/dev/full").open("wb", buffering=0) as full:
        job = supervise(program, stdout=full)
        _, told = job.communicate(timeout=60)
    assert job.returncode == code
    assert done.exists()
    assert told.count(b"standard output cannot be written: No space left on device") == 1


def test_a_pipe_that_does_not_block_gets_every_line() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    job = supervise("for n in range(30_000): print('[0] line', n)", stdout=writing)
    while select.select([], [writing], [], 0)[1]:
        assert job.poll() is None
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read().splitlines() == [b"[0] line %d" % n for n in range(30_000)]
    assert job.wait(60) == 0


def test_a_job_that_went_well_did_not_abort_whatever_it_prints() -> None:
    said = b"[0] Abort(1) on node 0 (rank 0 in comm 0): application called MPI_Abort(comm=0, 7)\n"
    job = supervise(f"import os; os.write(2, {said!r})")
    assert job.communicate(timeout=60) == (b"", said)
    assert job.returncode == 0


def test_what_nohup_ignores_ends_no_job() -> None:
    job = supervise(
        "print('ready'); input()",
        stdin=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert job.stdout is not None
    assert job.stdout.readline() == b"ready\n"
    job.send_signal(signal.SIGHUP)
    job.communicate(b"\n", timeout=60)
    assert job.returncode == 0
