"""What another exchange would give, held against steps that are simulated with it. No ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hvd_ext.errors import UsageError
from hvprof.analysis.replay.change import Changed, WhatIf
from hvprof.analysis.replay.replay import replay
from hvprof.analysis.replay.timeline import Blocked, Exchange, JobStep, RankStep
from hvprof.analysis.replay.whatif import answer
from hvprof.cli import main
from tests.support.hvprof.made_recordings import write_job

MB = 1_000_000
LATENCY_S, BYTE_S = 1e-3, 20e-9
# When gradients are ready after a step began, and how many bytes of them.
READY = ((0.050, 1 * MB), (0.060, 2 * MB), (0.080, 4 * MB), (0.098, MB // 2))
BACKWARD_S, REST_S, TAIL_S = 0.100, 0.020, 0.002


@dataclass(frozen=True)
class Job:
    """A training over a network, simulated by itself."""

    latency_s: float = LATENCY_S
    byte_s: float = BYTE_S
    ready: tuple[tuple[float, int], ...] = READY
    algorithm: str = "ring"
    ranks: int = 2
    # How much slower rank 1 computes in odd steps, and rank 0 in even ones.
    jitter_s: float = 0.004
    # Factor on all computation of the last rank.
    straggling: float = 1.0

    def run(self, count: int = 6, *, with_ready: bool = True) -> list[JobStep]:
        begin_s = [10.0] * self.ranks
        steps = []
        for number in range(count):
            slow_s = [self.jitter_s * ((rank + number) % 2) for rank in range(self.ranks)]
            pace = [1.0] * (self.ranks - 1) + [self.straggling]
            ended_s, found = 0.0, []
            for at_s, message_bytes in self.ready:
                ready_s = [b + at_s * f + s for b, s, f in zip(begin_s, slow_s, pace, strict=True)]
                starts_s = [max(ended_s, at) for at in ready_s]
                ended_s = max(starts_s) + self.latency_s + message_bytes * self.byte_s
                found.append((message_bytes, ready_s, starts_s, ended_s))
            of_ranks = []
            for rank in range(self.ranks):
                exchanges = tuple(
                    Exchange("allreduce", self.algorithm, size, self.ranks, starts[rank], end,
                             ready[rank] if with_ready else None)
                    for size, ready, starts, end in found
                )  # fmt: skip
                waits_s = begin_s[rank] + BACKWARD_S * pace[rank] + slow_s[rank]
                left_s = max(waits_s, ended_s) + TAIL_S
                blocked = (Blocked(waits_s, left_s),)
                end_s = left_s + REST_S * pace[rank]
                of_ranks.append(RankStep(begin_s[rank], end_s, exchanges, blocked))
                begin_s[rank] = end_s
            steps.append(tuple(of_ranks))
        return steps


def step_s(steps: Sequence[JobStep]) -> float:
    return float(np.mean(np.median([[r.end_s - r.begin_s for r in s] for s in steps], axis=0)))


NETWORKS = [
    (WhatIf(bandwidth=10), {"byte_s": BYTE_S / 10}),
    (WhatIf(bandwidth=0.1), {"byte_s": BYTE_S * 10}),
    (WhatIf(latency=20), {"latency_s": LATENCY_S * 20}),
    (WhatIf(latency_s=5e-6, bandwidth=3), {"latency_s": 5e-6, "byte_s": BYTE_S / 3}),
]


@pytest.mark.parametrize(("asked", "other"), NETWORKS)
@pytest.mark.parametrize("ranks", [2, 5])
def test_another_network_gives_what_a_run_over_it_does(
    asked: WhatIf, other: dict[str, float], ranks: int
) -> None:
    job = Job(ranks=ranks)
    found = answer(job.run(), asked)
    assert found.error < 1e-9
    assert found.knows_ready
    assert found.recorded_s == pytest.approx(step_s(job.run()))
    (line,) = found.network.lines
    assert line.latency_s == pytest.approx(LATENCY_S, rel=1e-6)
    assert line.byte_s == pytest.approx(BYTE_S, rel=1e-6)
    true_s = step_s(dataclasses.replace(job, **other).run())
    assert true_s != pytest.approx(found.recorded_s, rel=0.03)
    assert found.low_s == found.high_s == pytest.approx(true_s, rel=1e-9)


@pytest.mark.parametrize(("asked", "other"), NETWORKS)
def test_where_ready_times_are_not_told_the_truth_lies_between(
    asked: WhatIf, other: dict[str, float]
) -> None:
    found = answer(Job().run(with_ready=False), asked)
    assert not found.knows_ready
    true_s = step_s(dataclasses.replace(Job(), **other).run())
    assert found.low_s <= true_s * (1 + 1e-9)
    assert found.high_s >= true_s * (1 - 1e-9)


def test_a_faster_network_is_a_range_only_where_an_exchange_hid_when_gradients_came() -> None:
    slow = Job(byte_s=100e-9)
    with_ready = answer(slow.run(), WhatIf(bandwidth=10))
    without_ready = answer(slow.run(with_ready=False), WhatIf(bandwidth=10))
    assert with_ready.low_s == with_ready.high_s
    assert without_ready.low_s < without_ready.high_s
    assert without_ready.low_s <= with_ready.low_s * (1 + 1e-9)
    assert without_ready.high_s >= with_ready.low_s * (1 - 1e-9)
    # Where each exchange was over before the next was ready, nothing is hidden.
    fast = answer(Job(byte_s=0.1e-9).run(with_ready=False), WhatIf(bandwidth=0.5))
    assert fast.knows_ready


def test_buckets_are_cut_anew() -> None:
    half = 3 * MB // 2
    job = Job(ready=((0.050, half), (0.060, half), (0.080, 2 * half), (0.098, half)), latency_s=0)
    found = answer(job.run(), WhatIf(bucket_bytes=2 * half))
    ready = ((0.060, 2 * half), (0.080, 2 * half), (0.098, half))
    true = dataclasses.replace(job, ready=ready)
    assert found.low_s == pytest.approx(step_s(true.run()), rel=1e-6)
    # One bucket begins when all gradients are there.
    one = answer(job.run(), WhatIf(bucket_bytes=100 * MB))
    true = dataclasses.replace(job, ready=((0.098, 5 * half),))
    assert one.low_s == pytest.approx(step_s(true.run()), rel=1e-6)


def test_another_algorithm_changes_messages_and_bytes_as_its_formula_does() -> None:
    # 8 ranks: a ring has 14 messages and 1.75 n, a tree 6 and 6 n.
    job = Job(ranks=8)
    found = answer(job.run(), WhatIf(algorithm="tree"))
    alpha_s, beta_s = LATENCY_S / 14, BYTE_S / 1.75
    tree = dataclasses.replace(job, latency_s=6 * alpha_s, byte_s=6 * beta_s)
    assert found.low_s == pytest.approx(step_s(tree.run()), rel=0.02)
    # Back again.
    job = dataclasses.replace(tree, algorithm="tree")
    found = answer(job.run(), WhatIf(algorithm="ring"))
    assert found.low_s == pytest.approx(step_s(Job(ranks=8).run()), rel=0.02)


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("asked", [WhatIf(), WhatIf(bandwidth=10)], ids=["alone", "with another"])
def test_without_the_slowest_rank_a_step_is_that_of_equal_ranks(asked: WhatIf, ranks: int) -> None:
    job = Job(ranks=ranks, jitter_s=0.0, straggling=1.5)
    found = answer(job.run(), dataclasses.replace(asked, without_slowest=True))
    assert found.slowest is not None
    assert found.slowest.rank == ranks - 1
    own_s = BACKWARD_S + REST_S
    assert found.slowest.own_s == pytest.approx(1.5 * own_s)
    assert found.slowest.others_s == pytest.approx(own_s)
    equal = Job(ranks=ranks, jitter_s=0.0, byte_s=BYTE_S / asked.bandwidth)
    assert found.low_s == found.high_s == pytest.approx(step_s(equal.run()), rel=1e-9)
    assert found.recorded_s > 1.1 * found.low_s
    # Without ready times, the truth lies between.
    bounds = answer(job.run(with_ready=False), dataclasses.replace(asked, without_slowest=True))
    assert bounds.low_s <= found.low_s * (1 + 1e-9)
    assert bounds.high_s >= found.low_s * (1 - 1e-9)


def test_ranks_that_are_slow_in_turn_have_nothing_to_gain() -> None:
    found = answer(Job().run(), WhatIf(without_slowest=True))
    assert found.low_s == pytest.approx(found.recorded_s, rel=1e-3)


def test_without_an_exchange_nothing_is_waited_for() -> None:
    found = answer(Job().run(), WhatIf(exchange=False))
    assert found.low_s == pytest.approx(BACKWARD_S + 0.002 + REST_S)


def test_exchanges_of_one_length_may_be_all_bytes_or_have_much_latency() -> None:
    alike = tuple((at_s, MB + index * MB // 4) for index, (at_s, _) in enumerate(READY))
    job = Job(latency_s=0.0, byte_s=80e-9, ready=alike)
    found = answer(job.run(), WhatIf(bandwidth=4))
    assert found.network.one_length
    assert [line.latency_s > 0 for line in found.network.lines] == [False, True]
    faster_s = step_s(dataclasses.replace(job, byte_s=20e-9).run())
    assert found.low_s == pytest.approx(faster_s)
    assert found.high_s == pytest.approx(found.recorded_s)
    # What an allreduce of few bytes took leaves them less.
    found = answer(job.run(), WhatIf(bandwidth=4), most_latency_s=1e-3)
    assert found.low_s == pytest.approx(faster_s)
    assert found.high_s == pytest.approx(faster_s + 4 * 0.75e-3, rel=0.02)


def test_buckets_without_latency_where_all_may_be_latency() -> None:
    steps = Job(ready=((0.01, 1_000_000),), jitter_s=0.0).run()
    found = answer(steps, WhatIf(latency_s=0.0, bucket_bytes=100_000))
    assert 0 < found.low_s <= found.high_s


@pytest.mark.parametrize("count", [1, 6])
def test_times_that_do_not_follow_lengths_may_still_be_bytes(count: int) -> None:
    # One gradient bucket a step, and now and then four bytes that take as long.
    bucket, metric = (0.080, 25_000), (0.099, 4)
    steps = Job(latency_s=1e-4, byte_s=0.0, ready=(bucket,)).run()[count:]
    steps += Job(latency_s=1.2e-4, byte_s=0.0, ready=(bucket, metric)).run()[:count]
    found = answer(steps, WhatIf(bandwidth=0.001))
    assert not found.network.one_length
    assert found.low_s == pytest.approx(found.recorded_s)
    assert found.high_s > found.recorded_s + 0.05


def test_exchanges_that_share_a_link_are_scaled_together() -> None:
    # Two of 1 MB at once: each begins when it is ready, both are over after 80 ms.
    steps = []
    for number in range(4):
        begin_s = float(number)
        exchanges = tuple(
            Exchange("allreduce", "ring", MB, 2, begin_s + at_s, begin_s + end_s, begin_s + at_s)
            for at_s, end_s in ((0.010, 0.070), (0.020, 0.090))
        )
        blocked = (Blocked(begin_s + 0.025, begin_s + 0.090),)
        steps.append((RankStep(begin_s, begin_s + 0.1, exchanges, blocked),) * 2)
    found = answer(steps, WhatIf(bandwidth=2))
    assert found.error < 1e-9
    assert found.low_s == pytest.approx(0.1 - 0.040)


def test_exchanges_that_share_a_link_tell_its_speed_together() -> None:
    # 4 MB and 1 MB at once: the first is over after 190 ms, the second 10 ms later.
    steps = []
    for number in range(4):
        begin_s = float(number)
        exchanges = tuple(
            Exchange("allreduce", "ring", size, 2, begin_s + at_s, begin_s + end_s, begin_s + at_s)
            for size, at_s, end_s in ((4 * MB, 0.010, 0.200), (MB, 0.020, 0.210))
        )
        blocked = (Blocked(begin_s + 0.025, begin_s + 0.210),)
        steps.append((RankStep(begin_s, begin_s + 0.22, exchanges, blocked),) * 2)
    found = answer(steps, WhatIf(bandwidth=10))
    assert found.network.lines[0].byte_s == pytest.approx(40e-9)
    # From 25 ms on the thread waits.
    assert found.low_s == pytest.approx(0.22 - 0.180)


def test_stalls_do_not_bend_the_line() -> None:
    # In two of five steps the link stalls in one of the exchanges.
    steps = [
        step
        for number in range(20)
        for step in dataclasses.replace(
            Job(jitter_s=0.0),
            ready=tuple(
                (at_s + 0.3 * (index > number % 4) * (number % 5 < 2), size)
                for index, (at_s, size) in enumerate(READY)
            ),
        ).run(1)
    ]
    stalled = [
        tuple(_stalled(rank, number % 4) if number % 5 < 2 else rank for rank in step)
        for number, step in enumerate(steps)
    ]
    (line,) = answer(stalled, WhatIf(bandwidth=10)).network.lines
    assert line.latency_s == pytest.approx(LATENCY_S, rel=0.02)
    assert line.byte_s == pytest.approx(BYTE_S, rel=0.02)


def _stalled(rank: RankStep, place: int) -> RankStep:
    exchange = rank.exchanges[place]
    longer = dataclasses.replace(exchange, end_s=exchange.end_s + 0.2)
    exchanges = (*rank.exchanges[:place], longer, *rank.exchanges[place + 1 :])
    end_s = max(rank.blocked[0].end_s, longer.end_s)
    blocked = (Blocked(rank.blocked[0].begin_s, end_s),)
    return dataclasses.replace(
        rank, exchanges=exchanges, blocked=blocked, end_s=max(rank.end_s, end_s)
    )


def test_what_an_exchange_took_beyond_the_line_is_not_the_networks() -> None:
    # In three of eleven steps a thread came 50 ms late out of its last exchange.
    steps = [
        tuple(_late_out(rank, 0.05) for rank in step) if number < 3 else step
        for number, step in enumerate(Job(jitter_s=0.0).run(11))
    ]
    found = answer(steps, WhatIf(bandwidth=10))
    faster = step_s(Job(jitter_s=0.0, byte_s=BYTE_S / 10).run())
    assert found.low_s == pytest.approx(faster)
    replayed = replay(steps, Changed(WhatIf(bandwidth=10), found.network.lines[0]))
    assert replayed[0][0] == pytest.approx(faster + 0.05)


def _late_out(rank: RankStep, late_s: float) -> RankStep:
    last = rank.exchanges[-1]
    return RankStep(
        rank.begin_s,
        rank.end_s + late_s,
        (*rank.exchanges[:-1], dataclasses.replace(last, end_s=last.end_s + late_s)),
        (Blocked(rank.blocked[0].begin_s, rank.blocked[0].end_s + late_s),),
    )


def test_steps_that_wait_for_something_else_are_refused() -> None:
    # Half of each wait lies behind an exchange that ended after it.
    steps = [
        tuple(
            dataclasses.replace(
                rank,
                exchanges=tuple(
                    dataclasses.replace(one, end_s=one.begin_s - 0.001 * index)
                    for index, one in enumerate(rank.exchanges)
                ),
                blocked=(Blocked(rank.begin_s + 0.001, rank.begin_s + 0.1),),
            )
            for rank in step
        )
        for step in Job().run()
    ]
    with pytest.raises(UsageError, match=r"unchanged replay is .* % off, more than 5 %"):
        answer(steps, WhatIf(bandwidth=2))


def test_shared_memory_has_no_algorithm_of_messages() -> None:
    with pytest.raises(UsageError, match="sends no messages"):
        answer(Job(algorithm="shared_memory").run(), WhatIf(algorithm="tree"))
    with pytest.raises(UsageError, match="'x' has no formula: use ring"):
        answer(Job().run(), WhatIf(algorithm="x"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no change requested: give --bandwidth"),
        (["--no-exchange", "--bandwidth", "2x"], "--no-exchange excludes other changes"),
        (["--no-exchange", "--without-slowest"], "--no-exchange excludes other changes"),
        (["--latency", "fast"], "--latency 'fast': use a factor such as 0.1x"),
        (["--bandwidth", "2x"], "has no trace: record one with hvprof record --trace"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    write_job(tmp_path / "run", 2)
    with pytest.raises(UsageError, match=message) as raised:
        main(["whatif", str(tmp_path / "run"), *arguments])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["0x", "-1", "nan", "infx", "much"])
def test_a_factor_is_above_zero(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["whatif", "x", f"--bandwidth={text}"])
    assert "is not a factor above 0: use 10x or 0.1x" in capsys.readouterr().err
