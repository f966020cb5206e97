"""The reason for which one rank is slower than the others."""

from __future__ import annotations

import pytest

from hvprof.analysis.waiting.slowness import Pace, reason
from hvprof.model import Step


def step(**parts: float) -> Step:
    whole = {"compute_s": 0.1, "exposed_s": 0.0, "io_s": 0.0, "other_s": 0.0, "queued_s": 0.0}
    whole |= parts
    time_s = whole["compute_s"] + whole["exposed_s"] + whole["io_s"] + whole["other_s"]
    return Step(index=10, start_s=0.0, time_s=time_s, overlapped_s=0.0, **whole)


def job(steps: list[Step], hosts: str = "aaaa") -> list[Pace]:
    """Ranks that end their steps together: who waits for nobody is the slowest."""
    return [
        Pace(rank, hosts[rank], one, 1 - one.exposed_s / one.time_s)
        for rank, one in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"compute_s": 0.2}, "it computes 200 ms a step, the others 100 ms: it has more work, or"),
        (
            {"compute_s": 0.2, "queued_s": 0.1},
            "it waits for a core 100 ms a step, the others do not: other processes or threads",
        ),
        (
            {"compute_s": 0.15, "exposed_s": 0.1, "cpu_s": 0.1, "queued_s": 0.15},
            "it waits for a core 50 ms a step, the others do not",
        ),
        (
            {"compute_s": 0.2, "cpu_s": 0.02},
            "it sleeps or waits outside of communication 200 ms a step, the others 100 ms: py-spy",
        ),
        ({"io_s": 0.1}, "it waits for input 100 ms a step, the others do not: look at its files"),
        (
            {"compute_s": 0.2, "page_faults": 25000},
            "it computes 200 ms a step, the others 100 ms: 25,000 page faults a step, the others 0",
        ),
    ],
)
def test_the_part_that_is_longer_is_the_reason(parts: dict[str, float], says: str) -> None:
    waits = step(exposed_s=0.1)
    assert str(reason(1, job([waits, step(**parts), waits, waits]))).startswith(says)


def test_where_all_ranks_wait_for_cores_none_shares_them_alone() -> None:
    waits = step(compute_s=0.16, exposed_s=0.04, queued_s=0.06)
    found = reason(1, job([waits, step(compute_s=0.2, queued_s=0.1), waits, waits]))
    assert str(found).endswith(
        "the others 60 ms: other processes or threads share the cores of all ranks"
    )


def test_a_slow_host_is_named() -> None:
    slow, waits = step(compute_s=0.2), step(exposed_s=0.1)
    found = reason(1, job([waits, slow, slow, waits], "abba"))
    assert str(found).startswith("all ranks of b are slow; it computes 200 ms")


def test_what_steps_do_not_say_is_not_said() -> None:
    waits = step(exposed_s=0.1)
    assert reason(1, job([waits, waits, waits, waits])) is None
    interrupted = step(compute_s=0.108, queued_s=0.008)
    assert reason(1, job([waits, interrupted, waits, waits])) is None
    assert reason(None, []) is None
