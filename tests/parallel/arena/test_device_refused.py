"""Without CuPy on one rank, no rank has a device arena; this needs no GPU."""

from __future__ import annotations

import json

import pytest


def test_all_ranks_hear_the_same_reason(launch):
    done = launch(3, ["tests/programs/arena/device_refused.py"], timeout=60)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("refused ") == 3, done.stdout


@pytest.mark.parametrize(
    ("argument", "reason"),
    [pytest.param("open", "", marks=pytest.mark.long), ("closed", "mapping of buffer")],
)
def test_ranks_report_whether_they_can_open_peers_memory(launch, argument, reason):
    done = launch(3, ["tests/programs/arena/device_open_peers.py", argument], timeout=60)
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if '"reason"' in line]
    said = [json.loads(line[line.index("{") :]) for line in lines]
    assert sorted(each["rank"] for each in said) == [0, 1, 2], done.stdout
    assert all(reason in each["reason"] for each in said), done.stdout
    assert all(bool(each["reason"]) == bool(reason) for each in said), done.stdout
