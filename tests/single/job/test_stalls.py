"""How late ranks are named, and how long a node's ranks are waited for."""

from __future__ import annotations

import pytest

from hvd_ext.errors import StallError
from hvd_ext.job import stalls
from hvd_ext.job.stalls import StallMonitor, StallReport

HOSTS = ("node07", "node07", "node08")


@pytest.mark.parametrize(
    ("ranks", "hosts", "says"),
    [
        ([1], HOSTS, "rank 1 (node07) did not reach a test within 600 s: look for its last lines"),
        ([1, 2], HOSTS, "ranks 1 (node07), 2 (node08) did not reach a test within 600 s"),
        ([1, 2], (), "ranks 1, 2 did not reach a test within 600 s: look for their last lines"),
        ([2], {2: "node08"}, "rank 2 (node08) did not reach"),
        ([], HOSTS, "a test took more than 600 s though every rank reached it"),
    ],
)
def test_late_ranks_are_named(ranks, hosts, says):
    sentence = StallReport(ranks, "a test", 600).sentence(hosts)
    assert sentence.startswith(says)
    assert "HVD_EXT_STALL_TIMEOUT_S" in sentence


def test_ranks_that_ended_are_named():
    sentence = StallReport([0, 2], "a test", 600, ended=True).sentence(HOSTS)
    assert sentence.startswith("ranks 0 (node07), 2 (node08) ended before a test")


@pytest.mark.parametrize("error", [TimeoutError, ProcessLookupError])
def test_the_monitor_gives_up_on_the_nodes_ranks_by_their_world_rank(monkeypatch, error):
    ended = []
    monkeypatch.setattr(stalls, "end_job", ended.append)

    def wait(_: float) -> None:
        raise error([0])

    with pytest.raises(StallError, match=r"rank 2 \(node08\)") as caught:
        StallMonitor(HOSTS, [2], 0.0, "a test")(wait)
    assert ended == [caught.value]


def test_the_monitor_waits_on_and_gives_what_came(monkeypatch):
    calls = []

    def wait(_: float) -> str:
        calls.append(1)
        if len(calls) < 3:
            raise TimeoutError([1])
        return "done"

    assert StallMonitor(HOSTS, [0, 1], 60.0, "a test")(wait) == "done"
