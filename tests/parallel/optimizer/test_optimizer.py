"""hvd_ext.torch in programs of their own: unmodified scripts, what is left at the end."""

from __future__ import annotations

import os
import pickle
import re

import numpy as np
import pytest
import torch


@pytest.mark.parametrize(
    ("np_", "arguments"),
    [
        (2, ["exit"]),
        pytest.param(2, ["interactive", "exit"], marks=pytest.mark.long),
        pytest.param(2, ["interactive", "shutdown"], marks=pytest.mark.long),
        pytest.param(2, ["shutdown", "1"], marks=pytest.mark.long),
        pytest.param(2, ["shutdown"], marks=pytest.mark.long),
        pytest.param(3, ["shutdown"], marks=pytest.mark.long),
        pytest.param(3, ["exit"], marks=pytest.mark.long),
    ],
)
def test_a_rank_that_ends_first_waits_for_those_that_use_mpi(launch, np_, arguments):
    """And after hvd.shutdown() an optimizer is not used."""
    done = launch(np_, ["tests/programs/optimizer/ends_first.py", *arguments])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == np_


@pytest.mark.long
def test_a_forked_child_waits_for_no_rank_when_it_ends(launch):
    done = launch(2, ["tests/programs/optimizer/forks_child.py"])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == 2


@pytest.mark.long
@pytest.mark.parametrize("used", ["nothing", "mpi4py", "optimizer"])
def test_init_after_shutdown_works_or_is_refused_with_what_to_do(launch, used):
    done = launch(2, ["tests/programs/optimizer/starts_again.py", used])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == 2


@pytest.mark.long
def test_an_exchange_that_never_ends_ends_the_job_at_shutdown(launch):
    done = launch(2, ["tests/programs/optimizer/left_in_flight.py"])
    assert done.returncode != 0
    assert "rank 1 (node1) did not " in done.stdout


def test_horovods_thread_gives_way_from_init_until_it_has_the_gradients(launch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("ranks share a core, where the thread is left alone")
    done = launch(2, ["tests/programs/optimizer/thread_gives_way.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    idle = re.findall(r"IDLE (\w+) (\d+) (\d+)", done.stdout)
    assert {(when, own) for when, _, own in idle} == {
        (when, str(os.SCHED_OTHER)) for when in ("init", "fallback", "arena")
    }
    counts = {when: {int(count) for w, count, _ in idle if w == when} for when, _, _ in idle}
    assert counts["init"] == counts["arena"] == {1}
    # The way back takes a privilege.
    assert counts["fallback"] == {0} or os.geteuid() != 0


def test_waiting_leaves_the_core_unless_the_user_says_otherwise(launch):
    done = launch(2, ["tests/programs/optimizer/gives_cores_away.py"])
    if "no Open MPI" in done.stdout:
        pytest.skip("the MPI library is not Open MPI")
    assert "rank 0 yields" in done.stdout, done.stdout
    assert "rank 1 spins" in done.stdout, done.stdout


SCRIPT = "tests/programs/optimizer/plain_horovod.py"


def run_script(launch, path, *prefix, launcher="horovodrun"):
    """Its last loss, parameters, name and arguments."""
    done = launch(2, [*prefix, SCRIPT, path], launcher=launcher)
    assert done.returncode == 0, done.stdout
    active = f"hvd_ext: active: exchanges gradients of {len(by_hand()[1])} parameters"
    assert done.stdout.count(active) == ("hvd_ext" in prefix)
    return pickle.loads(path.read_bytes())


def by_hand():
    """What two ranks of the script compute."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    draws = [torch.Generator().manual_seed(rank) for rank in range(2)]
    for _ in range(10):
        optimizer.zero_grad()
        loss = sum(model(torch.randn(8, 20, generator=d)).pow(2).mean() for d in draws) / 2
        loss.backward()
        optimizer.step()
    return loss.item(), [p.detach().numpy() for p in model.parameters()]


def test_an_unmodified_script_trains(launch, tmp_path):
    ours = run_script(launch, tmp_path / "ours", "-m", "hvd_ext", launcher="hvd-launch")
    loss, parameters, name, arguments = ours
    expected_loss, expected = by_hand()
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for found, wanted in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert name == "__main__"
    assert arguments == [SCRIPT, str(tmp_path / "ours")]


@pytest.mark.long
def test_an_unmodified_script_gives_the_same(launch, tmp_path):
    theirs = run_script(launch, tmp_path / "theirs")
    ours = run_script(launch, tmp_path / "ours", "-m", "hvd_ext")
    assert ours[0] == theirs[0]
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert ours[2] == theirs[2] == "__main__"


def test_a_script_that_is_not_there(launch):
    done = launch(1, ["-m", "hvd_ext", "no_such_script.py"])
    assert done.returncode == 2
    assert done.stdout.count("hvd_ext: error: script not found: 'no_such_script.py'") == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("HVD_EXT_BUCKET_BYTES", "HVD_EXT_BUCKET_BYTES='banana': give a size above 0"),
        pytest.param(
            "HVD_EXT_COMPRESSION",
            "invalid compression 'banana': use one of",
            marks=pytest.mark.long,
        ),
        pytest.param("HVD_EXT_SYNC", "invalid sync 'banana': use one of", marks=pytest.mark.long),
    ],
)
def test_a_variable_without_a_valid_value_ends_all_ranks_alike(launch, tmp_path, name, says):
    script = tmp_path / "train.py"
    script.write_text("import horovod.torch as hvd; hvd.init(); print('it ran')")
    done = launch(2, ["-m", "hvd_ext", script], env={name: "banana"}, launcher="hvd-launch")
    assert done.returncode == 2, done.stdout
    lines = [line for line in done.stdout.splitlines() if "error: " in line]
    assert lines, done.stdout
    assert all(f"hvd_ext: error: {says}" in line for line in lines), lines
    assert "it ran" not in done.stdout
