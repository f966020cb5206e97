"""Under torchrun and without MPI, the ranks of a node agree on its memory over c10d's store."""

from __future__ import annotations

import os
import sys

import pytest

from testbed import ranks
from tests.support.launch.launching import ROOT, rank_environment, run_to_end

_HIDES_MPI = ROOT / "tests" / "support" / "without_mpi"


def torchrun(*arguments: str, lives: int = 1, size: int = 2, **env: str) -> tuple[int, str]:
    """Code and output of the program at so many ranks of torchrun's."""
    path = os.pathsep.join(map(str, (_HIDES_MPI, *ranks.PACKAGES)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc-per-node={size}", f"--max-restarts={lives - 1}"]
    program = [*launcher, "tests/programs/c10d/under_torchrun.py", *arguments]
    done = run_to_end(program, rank_environment({"PYTHONPATH": path, **env}), 120 * lives)
    return done.returncode, done.stdout


# What the backend does is also tried where PyTorch compares the ranks' collectives, below.
@pytest.mark.parametrize(
    "part",
    [*(pytest.param(x, marks=pytest.mark.long) for x in ("hook", "device", "backend")), "asked"],
)
def test_all_doors_work_without_mpi(part):
    code, output = torchrun(part)
    assert code == 0, output
    assert output.count("done") == 2, output


def test_the_backend_works_where_pytorch_compares_the_ranks_collectives():
    code, output = torchrun("backend", TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert code == 0, output
    assert output.count("done") == 2, output


def test_a_group_without_mpi_ends_though_one_of_its_ranks_has_left():
    code, output = torchrun("left", size=3)
    assert code == 0, output
    assert output.count("done") == 3, output


@pytest.mark.long
def test_ranks_that_torchrun_starts_again_meet_nothing_of_their_earlier_lives():
    code, output = torchrun("again", lives=4)
    assert code == 0, output
    assert output.count("done") == 2, output


@pytest.mark.long
def test_a_rank_that_is_late_is_named():
    code, output = torchrun("late", HVD_EXT_STALL_TIMEOUT_S="2")
    assert code != 0
    assert "error: rank 1 did not reach hvd_ext.c10d.attach() within 2 s" in output, output


@pytest.mark.long
def test_mpis_rendezvous_is_refused():
    code, output = torchrun("rendezvous")
    assert code != 0
    assert "error: init_method='mpi://', where torchrun started the ranks: leave" in output, output
