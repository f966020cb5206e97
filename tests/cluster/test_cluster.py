"""Ranks on several hosts: found, summed between, and missed by name."""

from __future__ import annotations

import os

import pytest

MISSING = "tests/programs/job/missing_rank.py"


IN_SWEEP = pytest.mark.skipif(
    "HVD_EXT_TEST_SWEEP" not in os.environ,
    reason="set HVD_EXT_TEST_SWEEP=1, as make sweep does",
)


@pytest.mark.parametrize(
    ("count", "ranks_per_host"),
    [
        (2, 2),
        pytest.param(2, 1, marks=pytest.mark.long),
        pytest.param(4, 1, marks=pytest.mark.long),
        pytest.param(4, 2, marks=IN_SWEEP),
    ],
)
def test_parameters_are_horovods_on_several_hosts(build, launch_on, count, ranks_per_host):
    with build(count) as hosts:
        done = launch_on(
            hosts,
            ranks_per_host,
            ["tests/programs/job/on_hosts.py", count, ranks_per_host],
            env={"HVD_EXT_BUCKET_BYTES": "256 KiB"},
        )
    assert done.returncode == 0, done.stdout
    assert all(f"ok {rank}" in done.stdout for rank in range(count * ranks_per_host))


ON_HOSTS = [
    pytest.param(name, ranks, marks=pytest.mark.long if name == "adam" else IN_SWEEP)
    for name in ("sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam")
    for ranks in (1, 2)
]


@pytest.mark.parametrize(("name", "ranks_per_host"), ON_HOSTS)
def test_a_sharded_optimizer_gives_the_bits_of_the_unsharded(
    build, launch_on, name, ranks_per_host
):
    with build(2) as hosts:
        done = launch_on(
            hosts,
            ranks_per_host,
            ["tests/programs/optimizer/sharded_on_hosts.py", name],
            env={"HVD_EXT_BUCKET_BYTES": "2 KiB"},
            timeout=180,
        )
    assert done.returncode == 0, done.stdout
    # With one group of parameters, and with two.
    assert done.stdout.count("ok ") == 2 * 2 * ranks_per_host


# All on one host: test_failures.
@pytest.mark.parametrize(
    "how",
    [
        "step",
        pytest.param("die", marks=pytest.mark.long),
        pytest.param("construct", marks=pytest.mark.long),
        pytest.param("leave", marks=pytest.mark.long),
    ],
)
def test_a_rank_missing_on_the_other_host_ends_the_job_by_name(build, launch_on, how):
    with build(2) as hosts:
        done = launch_on(hosts, 1, [MISSING, how], env={"HVD_EXT_STALL_TIMEOUT_S": "4"})
    assert done.returncode != 0, done.stdout
    assert "all steps done" not in done.stdout
    assert "rank 1" in done.stdout
    if how != "construct":  # before that, ranks have not told where they are
        assert "host1" in done.stdout
