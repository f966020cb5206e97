"""hvd_ext.torch in programs of their own: unmodified scripts, what is left at the end."""

from __future__ import annotations

import pickle

import numpy as np
import pytest


@pytest.mark.parametrize(("np_", "ranks_per_node"), [(2, []), (3, []), (2, [1])])
def test_an_optimizer_is_not_used_after_shutdown(launch, np_, ranks_per_node):
    done = launch(np_, ["tests/programs/used_after_shutdown.py", *ranks_per_node])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == np_


@pytest.mark.parametrize("how", ["shutdown", "exit"])
def test_a_rank_that_ends_first_waits_for_those_that_use_mpi(launch, how):
    done = launch(3, ["tests/programs/ends_first.py", how])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == 3


def test_an_exchange_that_never_ends_ends_the_job_at_shutdown(launch):
    done = launch(2, ["tests/programs/left_in_flight.py"])
    assert done.returncode != 0
    assert "rank 1 (node1) did not " in done.stdout


@pytest.mark.parametrize(("asked", "found"), [([], "yields"), (["0"], "spins")])
def test_waiting_leaves_the_core_unless_the_user_says_otherwise(launch, asked, found):
    done = launch(1, ["tests/programs/gives_cores_away.py", *asked])
    if "no Open MPI" in done.stdout:
        pytest.skip("the MPI library is not Open MPI")
    assert found in done.stdout, done.stdout


def test_an_unmodified_script_gives_the_same(launch, tmp_path):
    script = "tests/programs/plain_horovod.py"
    for name, prefix in (("theirs", []), ("ours", ["-m", "hvd_ext"])):
        done = launch(2, [*prefix, script, tmp_path / name], launcher="horovodrun")
        assert done.returncode == 0, done.stdout
    theirs, ours = (pickle.loads((tmp_path / name).read_bytes()) for name in ("theirs", "ours"))
    assert ours[0] == theirs[0]
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert ours[2] == theirs[2] == "__main__"
    assert ours[3] == [script, str(tmp_path / "ours")]


def test_a_script_that_is_not_there(launch):
    done = launch(1, ["-m", "hvd_ext", "no_such_script.py"])
    assert done.returncode == 2
    assert done.stdout.count("hvd_ext: error: script not found: 'no_such_script.py'") == 1
