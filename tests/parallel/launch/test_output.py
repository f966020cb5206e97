"""What hvd-launch prints on real MPI libraries: whole lines, and why a rank failed."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.launch.on_every_mpi import (
    FAIL,
    can,
    environment,
    hvd_launch,
    run,
)

PIECES = """
import os, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
for number in range(20):
    os.write(1, b"line %d " % number)
    time.sleep(0.001)
    os.write(1, b"of rank %d\\n" % rank)
"""
# Every byte but those that end a line, long lines, and no end at last, all ranks at once.
WILD = """
import os
from mpi4py import MPI
comm = MPI.COMM_WORLD
block = bytes(byte for byte in range(256) if byte not in b"\\r\\n")
for number in range(200):
    os.write(1, b"%d %d " % (comm.rank, number) + block + b"\\n")
    os.write(2, b"error of %d: %d\\n" % (comm.rank, number))
    if number % 20 == 0:
        os.write(1, b"long" * 5000 + b"\\n")
        comm.Barrier()
os.write(1, b"no end")
"""


def test_a_line_written_in_pieces_is_whole(library: Path) -> None:
    done = run(library, "run", "-np", "2", "--", str(library / "python"), "-c", PIECES)
    expected = [f"[{rank}] line {line} of rank {rank}" for rank in (0, 1) for line in range(20)]
    assert sorted(done.stdout.splitlines()) == sorted(expected)


def test_lines_of_ranks_that_print_at_once_are_whole_and_in_order(library: Path) -> None:
    command = hvd_launch("run", "-np", "4", "--", str(library / "python"), "-c", WILD)
    done = subprocess.run(
        command, env=environment(library), capture_output=True, timeout=100, check=True
    )
    block = bytes(byte for byte in range(256) if byte not in b"\r\n")
    for rank in range(4):
        told, said = b"", b""
        for number in range(200):
            told += b"%d %d " % (rank, number) + block
            told += b"long" * 5000 if number % 20 == 0 else b""
            said += b"error of %d: %d" % (rank, number)
        for stream, expected in ((done.stdout, told + b"no end"), (done.stderr, said)):
            start = b"[%d] " % rank
            lines = [line for line in stream.split(b"\n") if line.startswith(start)]
            assert b"".join(line.removeprefix(start) for line in lines) == expected


@pytest.mark.parametrize(
    ("how", "code"),
    [pytest.param("raise", 42, marks=pytest.mark.long), ("kill", 137), ("abort", 43)],
)
def test_the_failing_ranks_last_lines_come_first(library: Path, how: str, code: int) -> None:
    done = run(library, "run", "-np", "2", "--", str(library / "python"), "-c", FAIL, how)
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    if how == "abort" and "which rank failed" in lines[-1]:
        assert not can(library, "last words")
        return
    at = next(i for i, line in enumerate(lines) if line.startswith("hvd-launch: rank 1 "))
    report = [line for line in lines[at + 1 :] if line.startswith("[1] ")]
    assert lines[at + 1] == report[0]
    assert "[1] last words" in report
    assert ("[1] ValueError: boom" in report) == (how == "raise")
    assert not any(line.startswith("[0] ") for line in lines[at:])
    # What the launcher says comes after, except of an abort, which it tells before it ends.
    if how != "abort":
        assert not any("---" in line or "===" in line for line in lines[:at])
    assert "\x1e" not in done.stdout + done.stderr


def test_a_reader_that_leaves_ends_the_job(library: Path) -> None:
    endless = "import time\nwhile True: print('x' * 99); time.sleep(0.001)"
    job = [*hvd_launch("run", "-np", "2", "--", str(library / "python"), "-c", endless)]
    line = f"{shlex.join(job)} | head -n 1"
    done = subprocess.run(
        ["sh", "-c", line], env=environment(library), capture_output=True, text=True, timeout=60
    )
    assert done.stdout.endswith("] " + "x" * 99 + "\n")
