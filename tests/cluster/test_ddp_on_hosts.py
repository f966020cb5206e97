"""A DDP model on hosts that share no memory."""

from __future__ import annotations


def test_gradients_are_equal_on_all_ranks(build, launch_on):
    with build(2) as hosts:
        done = launch_on(hosts, 2, ["tests/programs/c10d/ddp_on_hosts.py"], timeout=90)
    assert done.returncode == 0, done.stdout
    assert all(f"ok {rank}" in done.stdout for rank in range(4)), done.stdout
