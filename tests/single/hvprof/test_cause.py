"""The cause of communication's cost, for runs of which it is known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hvprof.analysis.analysis import Analysis
from hvprof.analysis.causes.finding import find_cause
from hvprof.machine import Machine, RunUsage
from hvprof.model import Cell, Partner, RankRecording, Recording
from hvprof.reporters.verdict import verdict

RUN_S = 10.0


def cell(operation: str, time_s: float, calls: int = 100, message_bytes: int = 8) -> Cell:
    return Cell(
        operation=operation,
        algorithm="native",
        traffic="data",
        source="mpi",
        size=4,
        low_bytes=message_bytes,
        high_bytes=message_bytes,
        calls=calls,
        message_bytes=calls * message_bytes,
        time_s=time_s,
        wait_s=None,
        min_s=time_s / calls,
        max_s=time_s / calls,
    )


def rank(
    number: int,
    cells: list[Cell],
    *,
    partners: tuple[Partner, ...] = (),
    host: str = "a",
    busy: float = 0.0,
    threads_busy: float = 0.0,
    file_bytes: int = 0,
) -> RankRecording:
    """A rank that runs 10 s; its main thread and its others want cores for so many of them."""
    return RankRecording(
        rank=number,
        size=4,
        host=host,
        pid=1,
        state="finalized",
        start_unix_s=100.0,
        end_unix_s=100.0 + RUN_S,
        recorder_cost_s=1e-7,
        dropped_calls=0,
        mpi_library="",
        cells=tuple(cells),
        host_cores=2,
        partners=partners,
        usage=RunUsage(
            finalize_s=0.0,
            cpu_s=busy / 2,
            queued_s=busy / 2,
            process_s=(busy + threads_busy) / 2,
            process_queued_s=(busy + threads_busy) / 2,
            before_s=0.0,
            after_s=0.0,
            file_bytes=file_bytes,
            threads=1,
            calling_threads=1,
        ),
    )


def even(operation: str, in_mpi_s: list[float], **more: int) -> list[RankRecording]:
    return [rank(n, [cell(operation, time_s, **more)]) for n, time_s in enumerate(in_mpi_s)]


def waits(number: int, time_s: float, on: int, direction: str) -> RankRecording:
    operation = "recv" if direction == "from" else "send"
    partners = (Partner(on, direction, 100, 800, time_s),)
    return rank(number, [cell(operation, time_s)], partners=partners)


CHAIN = [waits(0, 7.0, 1, "from"), waits(1, 6.5, 2, "from"), rank(2, [cell("send", 0.01)])]
RECEIVER = [waits(0, 6.0, 1, "to"), rank(1, [cell("recv", 0.01)])]
WITH_FILES = [rank(0, [cell("barrier", 0.1)], file_bytes=10**9), *even("barrier", [5.0] * 4)[1:]]
HOSTS = [rank(n, [cell("allreduce", 4.0 - 3 * (n // 2))], host="ab"[n // 2]) for n in range(4)]
CROWD = [rank(n, [cell("allreduce", 1.0)], busy=10.0) for n in range(4)]
THREADS = [rank(n, [cell("allreduce", 1.0)], busy=1.0, threads_busy=30.0) for n in range(2)]
MASTER = [rank(0, [cell("recv", 9.8)]), *even("send", [0.1] * 4)[1:]]


@pytest.mark.parametrize(
    ("ranks", "kind", "late", "said"),
    [
        (even("allreduce", [6.0, 6.0, 0.5, 6.0]), "late rank", (2,), "wait for rank 2: it"),
        (CHAIN, "late sender", (2,), "rank 0 waits for rank 1, which waits for rank 2."),
        (RECEIVER, "late receiver", (1,), "wait until rank 1 receives"),
        (WITH_FILES, "files", (0,), "rank 0, which reads or writes files"),
        (HOSTS, "host", (2, 3), "wait for b, whose ranks 2 and 3"),
        (CROWD, "ranks share cores", (), "4 ranks share 2 cores of a"),
        (THREADS, "threads share cores", (), "2 ranks have 6.0 threads"),
        (MASTER, "spare rank", (), "a rank with little work"),
        (even("recv", [7.5] * 4), "serial", (), "one after another"),
        (even("allgather", [5.0] * 4), "turns", (), "a different one each time"),
        (even("barrier", [5.0] * 4), "barriers", (), "synchronize in 100 barriers"),
        (even("send", [4.0] * 4, calls=100_000), "small messages", (), "100000 calls of send"),
        (even("alltoall", [6.0] * 4, calls=20, message_bytes=2**28), "transfer", (), "5 GiB"),
        (even("allreduce", [0.3] * 4), "light", (), "no bottleneck"),
    ],
)
def test_the_cause_is_named_and_nobody_else(
    ranks: list[RankRecording], kind: str, late: tuple[int, ...], said: str
) -> None:
    recording = Recording(Path("a"), tuple(ranks))
    cause = find_cause(recording)
    assert cause is not None
    assert (cause.kind.value, cause.ranks) == (kind, late)
    text = verdict(Analysis(recording))
    assert text.startswith("MPI takes ")
    assert said in text


def queued(
    ranks: list[RankRecording], queued_s: list[float], on_core_s: float = 1.0, **more: int
) -> list[RankRecording]:
    """The ranks, whose threads were on a core for so long and wait for one for these times."""
    found = []
    for one, time_s in zip(ranks, queued_s, strict=True):
        usage = RunUsage(0.0, on_core_s, time_s, on_core_s, time_s, 0.0, 0.0, 0, 1, 1)
        found.append(dataclasses.replace(one, usage=usage, **{"host_cores": 4, **more}))
    return found


EXCHANGE = [cell("isend", 0.1, 1200, 1 << 22), cell("irecv", 0.1, 1200, 1 << 22)]
WAITALL = [rank(n, [cell("waitall", 9.0, 1200, 0), *EXCHANGE]) for n in range(2)]
THROTTLED = Machine(10, 30.0, periods=100, throttled=90, quota_cores=1.0)


@pytest.mark.parametrize(
    ("ranks", "kind", "late", "said"),
    [
        (
            queued(even("sendrecv", [5.0] * 2), [8.0, 8.5]),
            *(
                "without cores",
                (),
                "2 ranks wait for one of the 4 cores of a for 80 % of the run",
            ),
        ),
        (
            queued(even("sendrecv", [5.0] * 2), [8.0, 8.5], cores=1),
            *("without cores", (), "or ranks are bound to the same ones"),
        ),
        (
            queued(even("allreduce", [5.0, 5.0, 5.0, 0.5]), [0.1, 0.1, 0.1, 8.0]),
            *("without cores", (3,), "wait for rank 3 of a, which waits for a core for"),
        ),
        (
            queued(even("allreduce", [1.1, 0.2]), [0.1, 1.5], on_core_s=8.0),
            *("without cores", (1,), "rank 1 of a, which waits for a core for 1.4"),
        ),
        # All wait for cores, and the one with more work does so outside of MPI.
        (
            queued(even("allreduce", [9.0, 9.0, 0.1]), [5.0] * 3, on_core_s=4.9),
            *("late rank", (2,), "wait for rank 2: it"),
        ),
        # A rank lacks a core now and then, which explains a fifth of what all spend in MPI.
        (
            queued(even("allreduce", [5.5, 5.5, 4.2, 5.5]), [0.1, 0.1, 1.4, 0.1], on_core_s=8.0),
            *("turns", (), "for a different one each time"),
        ),
        # A rank on each of two hosts.
        (
            [
                dataclasses.replace(one, host=host)
                for one, host in zip(
                    queued(even("sendrecv", [5.0] * 2), [8.0] * 2), "ab", strict=True
                )
            ],
            *("without cores", (), "the rank waits for one of the 4 cores of a for 80 % of the"),
        ),
        # More ranks than cores, which yield where they wait: others had most of both cores.
        (
            queued(even("allreduce", [9.4] * 4), [8.9] * 4, host_cores=2, yields=True),
            *("without cores", (), "4 ranks wait for one of the 2 cores of a for 80 % of the run"),
        ),
        # They had both cores themselves.
        (
            queued(even("allreduce", [9.4] * 4), [5.0] * 4, on_core_s=5.0, host_cores=2, yields=1),
            *("ranks share cores", (), "4 ranks share 2 cores of a, and on average 3.3 of them"),
        ),
        # The same, and the others work for as long as each rank waits.
        (
            queued(even("allreduce", [6.5] * 4), [4.0] * 4, on_core_s=4.5, host_cores=2, yields=1),
            *("turns", (), "a different one each time"),
        ),
        # They slept, so other programs need not have had the cores.
        (
            queued(even("allreduce", [9.4] * 4), [3.0] * 4, host_cores=2, yields=True),
            *("turns", (), "a different one each time"),
        ),
        # Who has more work than the others is late, whoever else wants the cores.
        (
            queued(even("allreduce", [7.0, 7.0, 7.0, 0.5]), [1.5] * 4),
            *("late rank", (3,), "wait for rank 3: it"),
        ),
        (
            [
                dataclasses.replace(one, machine=THROTTLED)
                for one in queued(even("allreduce", [5.0] * 2), [4.0] * 2)
            ],
            *("quota", (), "the CPU quota of 1 core on a ran out in 90 % of its periods"),
        ),
        (
            WAITALL,
            "transfer",
            (),
            "2400 messages of 4 MiB each, which waitall waits for, move 9.375 GiB",
        ),
        (even("allreduce", [5.0], calls=9000), "one rank", (), "the job has one rank"),
    ],
)
def test_evidence_comes_before_rules(
    ranks: list[RankRecording], kind: str, late: tuple[int, ...], said: str
) -> None:
    ranks = [dataclasses.replace(one, size=len(ranks)) for one in ranks]
    analysis = Analysis(Recording(Path("a"), tuple(ranks)))
    assert analysis.cause is not None
    assert (analysis.cause.kind.value, analysis.cause.ranks) == (kind, late)
    assert said in verdict(analysis)
    assert "0 bytes" not in verdict(analysis)
    assert "Horovod" not in verdict(analysis)


def test_polls_between_pieces_of_work_are_no_waiting() -> None:
    """None of the ranks does anything else for as long as they would wait for each other."""
    asks = dataclasses.replace(cell("testany", 8.5, 4_000_000, 0), ended=2000, ended_bytes=2**24)
    others = dataclasses.replace(cell("waitall", 0.1, 4000, 0), ended=8000, ended_bytes=2**30)
    ranks = [rank(n, [asks, others, *EXCHANGE]) for n in range(2)]
    ranks = [dataclasses.replace(one, size=2) for one in ranks]
    analysis = Analysis(Recording(Path("a"), tuple(ranks)))
    assert "4000000 calls of testany for 2000 messages take most of it" in verdict(analysis)
    assert "% of it calls that find nothing. " in verdict(analysis)
    polled = dataclasses.replace(ranks[0], cells=(cell("barrier", 0.1),))
    cause = find_cause(Recording(Path("a"), (polled, ranks[1])))
    assert cause is not None
    assert (cause.kind.value, cause.ranks) == ("late rank", (0,))


def test_the_largest_of_many_parts_is_not_most_of_it() -> None:
    parts = [cell("win_allocate", 1.0, 341, 0), cell("win_free", 0.9), cell("comm_dup", 0.8)]
    ranks = [rank(n, parts) for n in range(2)]
    text = verdict(Analysis(Recording(Path("a"), tuple(ranks))))
    assert "341 calls of win_allocate take the largest part of it" in text


def test_a_slow_rank_is_named_where_ranks_share_cores() -> None:
    in_mpi = even("allreduce", [8.5, 8.5, 1.0, 8.5])
    ranks = queued(in_mpi, [5.0, 5.0, 1.0, 5.0], on_core_s=4.9, host_cores=2, yields=True)
    cause = find_cause(Recording(Path("a"), tuple(ranks)))
    assert cause is not None
    assert (cause.kind.value, cause.ranks) == ("late rank", (2,))


def with_trials(ranks: list[RankRecording], *trial_us: float) -> Recording:
    """Their cores take so long for the same work; 0: unknown."""
    machines = [
        Machine(0, 0.0, trials=100, tried_s=5.0, trials_s2=5e-6 * took_us) if took_us else None
        for took_us in trial_us
    ]
    changed = [dataclasses.replace(a, machine=b) for a, b in zip(ranks, machines, strict=True)]
    return Recording(Path("a"), tuple(changed))


# Rank 2 is outside of MPI for 9.8 s, the others for 8.5: 15 % longer.
A_LITTLE_LATE = even("allreduce", [1.5, 1.5, 0.2, 1.5])


def test_a_rank_whose_core_is_slower_is_not_told_to_work_less() -> None:
    recording = with_trials(A_LITTLE_LATE, 0.7, 0.7, 0.91, 0.7)
    cause = find_cause(recording)
    assert cause is not None
    assert (cause.kind.value, cause.ranks) == ("slow cores", (2,))
    analysis = Analysis(recording)
    assert (
        "the others wait for rank 2: the core of rank 2 on a takes 30 % longer than the others' "
        "for the same work" in verdict(analysis)
    )
    (advice,) = analysis.advice
    assert advice.title == "Look at the cores of a"
    assert advice.most_s == pytest.approx(1.3)  # its lateness


@pytest.mark.parametrize(
    "trial_us",
    [(0.7, 0.7, 0.74, 0.7), (0.7, 0.7, 0.7, 0.7), (0.9, 0.9, 0.7, 0.9), (0.7, 0.7, 0.91, 0.0)],
    ids=["a part of it", "equal cores", "a faster core", "unknown on one rank"],
)
def test_a_rank_with_more_work_is_late_whatever_its_core(trial_us: tuple[float, ...]) -> None:
    cause = find_cause(with_trials(A_LITTLE_LATE, *trial_us))
    assert cause is not None
    assert (cause.kind.value, cause.ranks) == ("late rank", (2,))


def test_short_and_single_runs_get_no_advice() -> None:
    moment = [
        dataclasses.replace(one, end_unix_s=one.start_unix_s + 0.02, usage=None)
        for one in even("allreduce", [0.01] * 2)
    ]
    alone = [dataclasses.replace(one, size=1) for one in even("allreduce", [5.0], calls=9000)]
    for ranks, said in ((moment, "too short"), (alone, "one rank")):
        analysis = Analysis(Recording(Path("a"), tuple(ranks)))
        assert said in verdict(analysis)
        assert analysis.advice == []


def test_ranks_that_did_not_finish_are_analyzed_alike() -> None:
    killed = [
        dataclasses.replace(one, state="unfinished", end_unix_s=None, seen_unix_s=109.0, usage=None)
        for one in even("allreduce", [6.0, 6.0, 0.5, 6.0])
    ]
    cause = find_cause(Recording(Path("a"), tuple(killed)))
    assert cause is not None
    assert (cause.kind.value, cause.ranks, cause.run_s) == ("late rank", (2,), 9.0)
    hung = [
        dataclasses.replace(
            one,
            cells=(cell("allreduce", 0.5),),
            open_call="" if one.rank == 2 else "barrier",
            open_s=0.0 if one.rank == 2 else 8.0,
        )
        for one in killed
    ]
    recording = Recording(Path("a"), tuple(hung))
    cause = find_cause(recording)
    assert cause is not None
    assert (cause.kind.value, cause.ranks) == ("last call", (2,))
    text = verdict(Analysis(recording))
    assert "at last the others waited for 8 s in barrier, and rank 2 was outside of MPI" in text
    assert "Horovod" not in text
    assert "hvprof.step" not in text
    # It was killed before its first sign of life.
    hung[2] = dataclasses.replace(hung[2], seen_unix_s=None)
    assert "waited for 8 s in barrier" in verdict(Analysis(Recording(Path("a"), tuple(hung))))


def test_an_aborted_job_blames_nobody_but_who_aborted() -> None:
    began = [
        dataclasses.replace(
            one, state="unfinished", end_unix_s=None, seen_unix_s=100.0 + 0.2 * (1 + one.rank)
        )
        for one in even("allreduce", [0.06] * 2)
    ]
    analysis = Analysis(Recording(Path("a"), tuple(began)))
    assert "the run is too short to say more" in verdict(analysis)
    assert analysis.advice == []
    zero, one = began
    zero = dataclasses.replace(zero, open_call="abort")
    one = dataclasses.replace(one, open_call="barrier", open_s=0.2)
    analysis = Analysis(Recording(Path("a"), (zero, one)))
    assert "waited for 200 ms in barrier, and rank 0 called MPI_Abort." in verdict(analysis)
    assert analysis.advice == []


def test_calls_are_those_of_the_ranks_that_make_them() -> None:
    sends = [rank(0, [cell("send", 4.0, 100_000)]), rank(1, [cell("send", 4.0, 100_000)])]
    receives = [rank(n, [cell("recv", 3.9, 100_000)]) for n in (2, 3)]
    text = verdict(Analysis(Recording(Path("a"), (*sends, *receives))))
    assert "100000 calls of send with 8 B each" in text


def test_time_is_per_thread_where_several_call() -> None:
    ranks = even("allreduce", [20.0, 20.0])
    usage = RunUsage(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 4, 4)
    several = [dataclasses.replace(one, usage=usage) for one in ranks]
    text = verdict(Analysis(Recording(Path("a"), tuple(several))))
    assert text.startswith("MPI takes 50 % of the run (5 s of 10 s a rank and thread, of 4 threads")


def test_a_late_finish_is_waiting_for_it() -> None:
    """A rank that has nothing left to do waits in MPI_Finalize."""
    early = RunUsage(6.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0, 1, 1)
    last = RunUsage(0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 6.5, 0, 1, 1)
    ranks = [
        dataclasses.replace(one, usage=usage)
        for one, usage in zip(even("send", [0.01] * 3), (early, early, last), strict=True)
    ]
    cause = find_cause(Recording(Path("a"), tuple(ranks)))
    assert cause is not None
    assert (cause.kind.value, cause.ranks) == ("late rank", (2,))


def test_a_short_message_is_not_waited_for() -> None:
    """MPI_Send returns sooner than a message arrives: who receives it then is not waiting."""
    cells = [cell("recv", 2.4, 6_000_000), cell("send", 0.8, 6_000_000)]
    cause = find_cause(Recording(Path("a"), tuple(rank(n, cells) for n in range(2))))
    assert cause is not None
    assert (cause.kind.value, cause.ranks) == ("small messages", ())


def test_a_rank_that_waits_as_long_itself_is_not_blamed() -> None:
    """Most waiting is by turns; that one rank waited less does not explain it."""
    cause = find_cause(Recording(Path("a"), tuple(even("barrier", [3.5, 1.7]))))
    assert cause is not None
    assert (cause.kind.value, cause.ranks) == ("barriers", ())


def test_a_core_saves_no_more_than_the_lateness_of_the_rank_that_lacks_it() -> None:
    ranks = queued(even("allreduce", [1.1, 0.2]), [0.1, 1.5], on_core_s=8.0)
    (advice, *_) = Analysis(Recording(Path("a"), tuple(ranks))).advice
    assert advice.title.startswith("Give each rank a core")
    assert advice.most_s == pytest.approx(0.9)


def test_the_table_of_waits_says_what_the_sentence_says() -> None:
    """Ranks that wait by turns, which no rank's times show."""
    analysis = Analysis(Recording(Path("a"), tuple(even("allreduce", [5.0] * 4))))
    assert "an estimated 100 % of it waiting" in verdict(analysis)
    assert analysis.wait_split is not None
    ((name, transfer_s, wait_s),) = analysis.wait_split.by_operation
    assert (name, round(transfer_s, 2), round(wait_s, 2)) == ("allreduce <1 KB", 0.01, 4.99)
    assert not analysis.wait_split.waited_for
    assert "do not show" not in analysis.wait_split.note


@pytest.mark.parametrize(
    ("calls", "message_bytes", "advice"),
    [
        (100_000, 8, "Read and write more bytes in a call, or by collective calls"),
        (20, 1 << 28, "Read and write fewer bytes, or overlap them with computation"),
    ],
)
def test_files_are_no_messages(calls: int, message_bytes: int, advice: str) -> None:
    ranks = even("file_write_at", [6.0] * 4, calls=calls, message_bytes=message_bytes)
    assert advice in Analysis(Recording(Path("a"), tuple(ranks))).advice[0].title
