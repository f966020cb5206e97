"""Lines that come in pieces, and which rank failed first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_launch.job_output import ERRORS, LAST_LINES, OUTPUT, Failure, JobOutput
from hvd_launch.rank_output import MARK, Lines


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
    assert output.failure == Failure(1, "exited with code 3", 3)
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
        (b"rank 2 was killed by SIGSEGV", Failure(2, "was killed by SIGSEGV", 139)),
        (b"rank 2 was killed by signal 64", Failure(2, "was killed by signal 64", None)),
        (b"rank x exited with code 3", None),
        (b"rank 2 exited with code ", None),
        (b"", None),
    ],
)
def test_reports(report: bytes, failure: Failure | None) -> None:
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
