"""Why a job hangs, from ranks that are made here, and from damaged files. No ranks."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import hvprof
from hvd_ext.errors import UsageError
from hvprof import cli
from hvprof.format.current import read_current
from hvprof.format.layout import (
    CURRENT,
)
from hvprof.format.writer import write_rank
from hvprof.live.cause import Cause
from hvprof.live.diagnosis import diagnose
from hvprof.live.reading import parse_ranks, read_standings
from hvprof.live.stacks.c import frame_in, sleeps_in
from hvprof.live.stacks.python import line_in, waits_for_worker
from hvprof.live.standing import Call, Group, Process, Standing, Thread
from tests.support.hvprof.made_recordings import put_current, write_job

BLOCKED_S = 41.0


@cache
def group(size: int, name: str = "world") -> Group:
    return Group(f"id of {name}", name, tuple(range(size)))


def rank(
    number: int,
    call: Call | None = None,
    *,
    process: Process = Process.RUNS,
    since_s: float = BLOCKED_S,
    entered: int | None = None,
    latest: dict[int, str] | None = None,
    region: str = "",
) -> Standing:
    """A rank whose first thread is in a call, or in none; what it entered follows from that."""
    at = call.group if call else None
    count = entered if entered is not None else (call.number if call else 0)
    name = at.id if at else "id of world"
    return Standing(
        rank=number,
        host="node0",
        pid=4700 + number,
        process=process,
        threads=(
            Thread(
                4700 + number,
                main=True,
                call=call,
                since_s=since_s,
                region=region,
                region_kind="communication" if region else "other",
                region_s=BLOCKED_S if region else 0.0,
            ),
        ),
        entered={name: count} if count else {},
        latest={name: latest or {}},
    )


def allreduce(size: int, number: int = 1042, name: str = "world", count: int = 10**8) -> Call:
    return Call("allreduce", group(size, name), number=number, message_bytes=count, collective=True)


def only(standings: list[Standing]) -> Cause:
    (cause,) = diagnose(standings, 5)
    return cause


def test_the_rank_that_has_not_come_is_named_with_what_it_does() -> None:
    ranks = [*(rank(number, allreduce(4)) for number in range(3)), rank(3, entered=1041)]
    cause = only(ranks)
    assert (cause.kind, cause.ranks, cause.waiting) == ("late", (3,), (0, 1, 2))
    assert cause.sentence == (
        "for 41 s ranks 0 to 2 have been in Allreduce 1042 of world (95.37 MiB);"
        " rank 3 (node0, pid 4703) has not come: it computes outside of MPI"
    )


def test_a_chain_is_followed_to_its_end() -> None:
    """3 to 8 wait in a collective, for 2, which receives from 1, which receives from 0."""
    ranks = [rank(0), *(rank(n, Call("recv", group(9), peer=n - 1)) for n in (1, 2))]
    part = Group("id of part", "part", tuple(range(2, 9)))
    call = Call("barrier", part, number=7, collective=True)
    cause = only([*ranks, *(rank(number, call) for number in range(3, 9))])
    assert (cause.kind, cause.ranks) == ("late", (0,))
    assert cause.waiting == tuple(range(1, 9))
    assert cause.sentence == (
        "for 41 s ranks 3 to 8 have been in Barrier 7 of part;"
        " rank 2 (node0, pid 4702) has not come: it is in Recv from rank 1;"
        " rank 1 (node0, pid 4701) is in Recv from rank 0;"
        " rank 0 (node0, pid 4700) computes outside of MPI"
    )


def test_of_two_that_have_not_come_both_are_named() -> None:
    cause = only([rank(0, allreduce(3)), rank(1), rank(2)])
    assert (cause.kind, cause.ranks, cause.waiting) == ("late", (1, 2), (0,))


@pytest.mark.parametrize("size", [1, 2, 3, 5000])
def test_a_circle_of_receives_is_a_deadlock(size: int) -> None:
    ranks = [rank(n, Call("recv", group(size), peer=(n + 1) % size)) for n in range(size)]
    cause = only(ranks)
    assert (cause.kind, cause.ranks) == ("deadlock", tuple(sorted(range(size), key=str)))
    assert len(cause.sentence) < 1000


def test_who_came_to_a_circle_a_little_later_is_in_it() -> None:
    calls = [Call("recv", group(3), peer=peer) for peer in (1, 2, 0)]
    since = [6.0, 3.0, 4.0]
    ranks = [rank(n, call, since_s=since[n]) for n, call in enumerate(calls)]
    cause = only(ranks)
    assert (cause.kind, cause.ranks) == ("deadlock", (0, 1, 2))
    # A rank that has just come is not blocked yet, nor is a job of such ranks alone.
    late = only([*ranks[:2], rank(2, calls[2], since_s=0.5)])
    assert (late.kind, late.ranks) == ("late", (2,))
    assert diagnose(ranks[1:], 5) == ()


def test_who_waits_for_a_circle_is_not_in_it() -> None:
    ranks = [rank(n, Call("recv", group(4), peer=peer)) for n, peer in enumerate((1, 0, 0, 2))]
    cause = only(ranks)
    assert (cause.kind, cause.ranks, cause.waiting) == ("deadlock", (0, 1), (2, 3))


def test_two_collectives_in_two_orders_are_a_deadlock() -> None:
    cause = only([rank(0, allreduce(2, 5, "a")), rank(1, allreduce(2, 8, "b"))])
    assert (cause.kind, cause.ranks) == ("deadlock", (0, 1))
    assert "Allreduce 5 of a" in cause.sentence
    assert "which rank 1 has not entered" in cause.sentence


def bcast(size: int, root: int, count: int = 8) -> Call:
    return Call("bcast", group(size), number=9, peer=root, message_bytes=count, collective=True)


@pytest.mark.parametrize(
    ("calls", "blamed", "said"),
    [
        ([allreduce(4, 9), bcast(4, 0), allreduce(4, 9), allreduce(4, 9)], (1,), "rank 1 called B"),
        ([bcast(3, 0), bcast(3, 0), bcast(3, 2)], (2,), "rank 2 called Bcast with root 2"),
        ([bcast(3, 0), bcast(3, 0, 9), bcast(3, 0)], (1,), "rank 1 called Bcast of 9 B"),
        ([allreduce(2, 9), bcast(2, 0)], (0, 1), "rank 1 called Bcast"),
    ],
)
def test_mismatched_collectives_are_told_apart(
    calls: list[Call], blamed: tuple[int, ...], said: str
) -> None:
    cause = only([rank(number, call) for number, call in enumerate(calls)])
    assert (cause.kind, cause.ranks) == ("mismatch", blamed)
    assert said in cause.sentence


def test_a_rank_that_passed_by_another_operation_is_found() -> None:
    """The root of a broadcast leaves it at once, and waits in the next collective."""
    passed = rank(0, allreduce(2, 6), latest={5: "bcast", 6: "allreduce"})
    cause = only([passed, rank(1, allreduce(2, 5), latest={5: "allreduce"})])
    assert cause.kind == "mismatch"
    assert cause.ranks == (0, 1)
    assert "Bcast" in cause.sentence


@pytest.mark.parametrize(
    ("process", "kind", "said"),
    [
        (Process.STOPPED, "stopped", "kill -CONT 4701"),
        (Process.GONE, "gone", "is gone"),
        (Process.EXITED, "gone", "has exited without MPI_Finalize"),
        (Process.FINALIZED, "finalized", "has ended MPI"),
        (Process.NOT_STARTED, "not_started", "has not started MPI"),
        (Process.ON_DISK, "disk", "waits for the disk"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_process_that_cannot_come_is_the_cause(
    process: Process, kind: str, said: str, inside: bool
) -> None:
    held = rank(1, allreduce(3) if inside else None, process=process)
    cause = only([rank(0, allreduce(3)), held, rank(2, allreduce(3))])
    if not inside or kind in ("stopped", "gone"):
        assert (cause.kind, cause.ranks, cause.waiting) == (kind, (1,), (0, 2))
        assert said in cause.sentence


def test_a_region_of_communication_is_waited_in_together() -> None:
    cause = only([rank(0, region="exposed"), rank(1), rank(2, region="exposed")])
    assert (cause.kind, cause.ranks, cause.waiting) == ("late", (1,), (0, 2))
    assert "the region 'exposed' (communication)" in cause.sentence


def test_the_line_is_the_innermost_that_is_no_librarys() -> None:
    def frame(filename: str, name: str) -> dict[str, object]:
        return {"filename": filename, "line": 7, "name": name}

    library = frame("/x/lib/python3.11/site-packages/torch/nn/module.py", "forward")
    frames = [frame("/usr/lib/python3.11/random.py", "choice"), library]
    own = frame("/home/me/train.py", "augment")
    main = {
        "thread_name": "MainThread",
        "frames": [*frames, own, frame("/home/me/train.py", "main")],
    }
    other = {"thread_name": "Thread-1", "frames": frames}
    assert line_in([other, main]) == "train.py:7 in augment"
    assert line_in([other]) == "random.py:7 in choice"


def test_a_job_that_moves_has_no_cause() -> None:
    moving = [rank(n, allreduce(3), since_s=0.1) for n in range(2)]
    assert diagnose([*moving, rank(2)], 5) == ()
    served = Thread(9, main=False, call=Call("recv", group(1), any_source=True), since_s=900)
    assert diagnose([Standing(0, threads=(served,))], 5) == ()
    ended = [Standing(0, process=Process.FINALIZED), Standing(1, process=Process.GONE)]
    assert diagnose(ended, 5) == ()


def test_4096_ranks_are_diagnosed_in_a_line() -> None:
    ranks = [rank(n, allreduce(4096)) if n % 2 else rank(n) for n in range(4096)]
    cause = only(ranks)
    assert len(cause.ranks) == len(cause.waiting) == 2048
    assert len(cause.sentence) < 1000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3", (3,)),
        ("0-3", (0, 1, 2, 3)),
        ("1-7:3", (1, 4, 7)),
        ("4,0,2", (4, 0, 2)),
        ("0,1,...", None),
        ("", None),
        ("0-3:0", None),
        ("0-99999999999", None),
    ],
)
def test_ranks_of_a_communicator(text: str, found: tuple[int, ...] | None) -> None:
    assert parse_ranks(text) == found


# --- Files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "last"), [("allreduce", "allreduce"), ("comm_set_name", "")])
def test_the_last_call_is_none_of_hvd_exts_own(tmp_path: Path, name: str, last: str) -> None:
    write_job(tmp_path, 2, name=name)
    for number in range(2):
        path = put_current(tmp_path, number)
        made = np.frombuffer(path.read_bytes(), CURRENT).copy()
        made["slots"][0][0]["flags"] = 0
        path.write_bytes(made.tobytes())
    (thread,) = read_standings(tmp_path)[0].threads
    assert thread.call is None
    assert (thread.last.operation if thread.last else "") == last


def test_a_slot_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    whole = read_current(put_current(tmp_path, 0))
    torn = read_current(put_current(tmp_path, 1, changes=3))
    assert whole is not None
    assert whole.slots["thread"].tolist() == [77]
    assert torn is not None
    assert len(torn.slots) == 0
    assert read_current(tmp_path / "none.now") is None


def test_damaged_files_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_job(tmp_path / "job", 2)
    path = put_current(directory, 1)
    data = path.read_bytes()
    cases = {
        data[:500]: "is cut off: 500 of",
        b"another's" + data[9:]: "hvprof did not write it",
        data[:8] + b"\x09\0\0\0" + data[12:]: "has format 9, this hvprof reads 4",
    }
    for damaged, said in cases.items():
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=said):
            read_standings(directory)
    path.write_bytes(bytes(len(data)))  # begun, not written yet
    assert len(read_standings(directory)) == 2
    with pytest.raises(UsageError, match="name a folder"):
        read_standings(tmp_path / "none")
    with pytest.raises(UsageError, match="no rank has started MPI"):
        read_standings(tmp_path)
    assert cli.main(["hang", str(directory)]) == 0
    assert capsys.readouterr().out.startswith("the job has ended: ranks 0 and 1 have ended MPI")


def test_numbers_of_damaged_calls_are_read(tmp_path: Path) -> None:
    for rank in hvprof.load(write_job(tmp_path, 2)).ranks:
        write_rank(tmp_path, dataclasses.replace(rank, state="unfinished", end_unix_s=None))
        path = put_current(tmp_path, rank.rank)
        made = np.frombuffer(path.read_bytes(), CURRENT).copy()
        made["slots"]["operation"] = made["slots"]["started"] = made["latest"] = 60_000
        made["slots"]["communicator"], made["entered"] = 60_000, 9
        made["slots"]["thread"] = rank.pid
        path.write_bytes(made.tobytes())
    assert len(read_standings(tmp_path)) == len(hvprof.load(tmp_path).ranks) == 2


def test_a_job_of_4096_ranks_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_job(tmp_path / "one", 1)
    data = bytearray((directory / "rank-00000.hvprof").read_bytes())
    many = tmp_path / "many"
    many.mkdir()
    for number in range(0, 4096, 64):
        # State 0: it runs; on another machine, as its clock has no name.
        head = data[:12] + bytes(4) + number.to_bytes(4, "little") + (4096).to_bytes(4, "little")
        (many / f"rank-{number:05d}.hvprof").write_bytes(head + data[24:])
        put_current(many, number)
    assert cli.main(["hang", str(many), "--json"]) == 75
    read = json.loads(capsys.readouterr().out)
    assert len(read["ranks"]) == 4096
    assert read["ranks"][64]["process"] == "elsewhere"
    assert read["ranks"][65]["process"] == "not_started"


ANY = Call("recv", group(3), any_source=True)
FENCE = Call("win_fence")


def test_ranks_that_all_receive_from_any_hang() -> None:
    found = diagnose([rank(number, ANY) for number in range(3)], 5)
    assert [(cause.kind, cause.waiting) for cause in found] == [("any_source", (0, 1, 2))]
    assert "Recv from any rank" in found[0].sentence
    assert "no other rank is left to send" in found[0].sentence
    # A master that waits for busy workers does not.
    assert not any(cause.waiting for cause in diagnose([rank(0, ANY), rank(1), rank(2)], 5))


@pytest.mark.parametrize(
    ("process", "kind"), [(Process.STOPPED, "stopped"), (Process.RUNS, "late")]
)
def test_a_fence_waits_for_the_rank_that_has_not_come(process: Process, kind: str) -> None:
    cause = only([rank(0, FENCE), rank(1, process=process), rank(2, FENCE)])
    assert (cause.kind, cause.ranks, cause.waiting) == (kind, (1,), (0, 2))
    assert "have been in Win_fence; rank 1 (node0, pid 4701) " in cause.sentence


def test_the_line_of_a_c_program_is_its_own() -> None:
    stack = """\
#0  0x00007fcd06eed545 in __GI___clock_nanosleep (clock_id=0) at ../sysdeps/clock_nanosleep.c:48
#1  0x00007fcd06ef1d8a in sleep (seconds=0) from /lib/x86_64-linux-gnu/libc.so.6
#2  0x000055ec35f76187 in reads_input () at /home/me/input.c:3
#3  0x000055ec35f761cf in main (c=1, v=0x7ffda637db28) at /home/me/input.c:4
"""
    assert frame_in(stack) == "input.c:3 in reads_input"
    assert frame_in("#0  0x1 in solve () from /home/me/libsolve.so\n") == "in solve"
    assert frame_in("No symbol table is loaded.\n") == ""


def test_what_a_process_sleeps_in_is_named_with_its_file() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as waits:
        end_s = time.monotonic() + 30
        while "read of pipe:" not in (said := sleeps_in(waits.pid)) and time.monotonic() < end_s:
            time.sleep(0.05)
        assert waits.stdin is not None
        waits.stdin.close()
    assert said.startswith("sleeps in read of pipe:")
    assert sleeps_in(2**22 + 1) == ""


def test_a_rank_that_waits_for_a_data_loader_is_known() -> None:
    def thread(filename: str) -> dict[str, object]:
        frames = [{"filename": filename, "line": 1, "name": "f"}]
        return {"thread_name": "MainThread", "frames": frames}

    assert waits_for_worker([thread("/x/site-packages/torch/utils/data/dataloader.py")])
    assert not waits_for_worker([thread("/home/me/train.py")])
