"""Waits by name, signs of life and links, from ranks that are made here. No ranks."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hvprof.format.connections import Connection
from hvprof.format.layout import BEAT, HOLDS_LOCK
from hvprof.live.cause import Cause
from hvprof.live.diagnosis import diagnose
from hvprof.live.links import slow_link
from hvprof.live.signs import believed, state_by_signs
from hvprof.live.standing import Call, Group, Process, Standing, Thread

GROUP = Group("id of Horovod", "Horovod", (0, 1, 2, 3))
KEY = 77
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("holds", flush=True)
sys.stdin.read()
"""


def rank(number: int, call: Call | None = None, submitted: tuple[int, ...] = ()) -> Standing:
    thread = Thread(4700 + number, main=True, call=call, since_s=9.0)
    return Standing(
        number, host=f"node{number}", pid=1, threads=(thread,), submitted=frozenset(submitted)
    )


def only(standings: list[Standing]) -> Cause:
    (cause,) = diagnose(standings, 5)
    return cause


def test_who_has_not_submitted_a_tensor_is_late() -> None:
    """2 has submitted it, and computes; what 3 has submitted last has another key."""
    about = "Horovod's allreduce of 'w'"
    call = Call("allreduce", GROUP, number=KEY, collective=True, about=about, by_name=True)
    waiting = [rank(number, call, (KEY,)) for number in (0, 1)]
    cause = only([*waiting, rank(2, submitted=(1, KEY)), rank(3, submitted=(1,))])
    assert (cause.kind, cause.ranks, cause.waiting) == ("late", (3,), (0, 1))
    assert f"ranks 0 and 1 have been in {about}; rank 3 (node3" in cause.sentence


def test_ranks_that_the_program_knows_to_be_late_are_named_together() -> None:
    calls = [Call("exchange", about="the exchange of bucket 2", late=late) for late in [(2,), (3,)]]
    cause = only([rank(0, calls[0]), rank(1, calls[1]), rank(2), rank(3)])
    assert (cause.kind, cause.ranks, cause.waiting) == ("late", (2, 3), (0, 1))
    assert "ranks 0 and 1 have been in the exchange of bucket 2" in cause.sentence


def test_a_silent_rank_is_the_cause_unless_all_are() -> None:
    call = Call("allreduce", GROUP, number=5, collective=True)
    ranks = [replace(rank(number, call), by_signs=True) for number in range(4)]
    ranks[2] = replace(ranks[2], process=Process.SILENT)
    cause = only([*believed(ranks)])
    assert (cause.kind, cause.ranks) == ("stopped", (2,))
    assert "gives no sign of life" in cause.sentence
    silent = [replace(one, process=Process.SILENT) for one in ranks]
    assert {one.process for one in believed(silent)} == {Process.ELSEWHERE}


def test_a_process_is_gone_when_its_lock_is(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.now"
    path.write_bytes(b"now")
    beat = np.zeros(1, BEAT)[0]
    beat["state"], beat["flags"] = ord("S"), HOLDS_LOCK
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"holds\n"
    assert state_by_signs(beat, path, 0.2, same_clock=True) is Process.SLEEPS
    assert state_by_signs(beat, path, 9.0, same_clock=True) is Process.SILENT
    # On another host, an old sign may be late; the lock's state is not.
    assert state_by_signs(beat, path, 2.0, same_clock=True) is Process.SILENT
    assert state_by_signs(beat, path, 2.0, same_clock=False) is Process.ELSEWHERE
    process.kill()
    process.communicate()
    assert state_by_signs(beat, path, 2.0, same_clock=False) is Process.GONE
    assert state_by_signs(beat, path, 9.0, same_clock=True) is Process.GONE
    beat["state"] = 0xFFFFFFFF  # damaged
    assert state_by_signs(beat, path, 0.2, same_clock=True) is Process.RUNS
    beat["flags"] = 0  # its file system has no locks
    assert state_by_signs(beat, path, 9.0, same_clock=True) is Process.SILENT


def connection(to: int, **facts: float) -> Connection:
    given = {"stuck_s": 0.0, "waited_s": 2.0, "again": 0, "unsent_s": 0.0}
    given |= {"delivered_bytes": 8 << 20, **facts}
    return Connection(local="", remote=f"10.0.0.{to}", queued_bytes=1 << 20, **given)  # type: ignore[arg-type]


def on_hosts(*connections: tuple[int, Connection]) -> list[Standing]:
    """Four ranks, each on a host with an address, and from which hosts there are connections."""
    return [
        replace(
            rank(number, Call("allreduce", GROUP, number=5, collective=True)),
            addresses=(f"10.0.0.{number}",),
            connections=tuple(one for host, one in connections if host == number),
        )
        for number in range(4)
    ]


@pytest.mark.parametrize(
    ("connections", "ranks", "said"),
    [
        ([(2, connection(3)), (3, connection(0))], (3,), "of node3 delivers 4 MiB a second; 2 MiB"),
        ([(2, connection(3)), (0, connection(1, waited_s=0.1))], (2, 3), "between node2 and node3"),
        (
            [(2, connection(3, stuck_s=7.0)), (3, connection(1, stuck_s=7.0)), (0, connection(1))],
            (3,),
            "of node3 has delivered nothing for 7 s",
        ),
        (
            [(1, connection(3, again=90)), (3, connection(2, again=60))],
            (3,),
            "of node3 delivers 4 MiB a second and loses packets: 150 segments were sent again",
        ),
        (
            [(3, connection(2, unsent_s=1.8)), (2, connection(1))],
            (3,),
            "of node3 delivers 4 MiB a second and loses packets: a queue on node3 drops them (tc",
        ),
        (
            [(3, connection(2, unsent_s=1.8)), (2, connection(3, unsent_s=1.2, again=200))],
            (2, 3),
            "loses packets: 200 segments were sent again, a queue on node2 and node3 drops them",
        ),
        ([(3, connection(2, unsent_s=0.4))], (2, 3), "node3 delivers 4 MiB a second; 1 MiB wait"),
    ],
)
def test_the_link_on_which_data_wait_is_named(
    connections: list[tuple[int, Connection]], ranks: tuple[int, ...], said: str
) -> None:
    standings = on_hosts(*connections)
    cause = only(standings)
    assert (cause.kind, cause.ranks) == ("link", ranks)
    assert said in cause.sentence
    assert only(on_hosts()).kind == "transfer"


def test_a_link_without_a_carrier_comes_first() -> None:
    standings = on_hosts((2, connection(3, stuck_s=2.0)))
    standings[1] = replace(standings[1], without_carrier="eth0")
    found = slow_link(standings)
    assert found is not None
    assert found.ranks == (1,)
    assert "the link of node1 has no carrier (eth0)" in found.sentence
