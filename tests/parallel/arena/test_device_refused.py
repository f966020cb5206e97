"""Without CuPy on one rank, no rank has a device arena; this needs no GPU."""

from __future__ import annotations


def test_all_ranks_hear_the_same_reason(launch):
    done = launch(3, ["tests/programs/arena/device_refused.py"], timeout=60)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("refused ") == 3, done.stdout
