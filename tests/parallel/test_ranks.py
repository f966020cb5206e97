"""The marker `ranks`: what is reported of a test that fails on some, hangs, dies or is skipped."""

from __future__ import annotations

import os

import pytest

from tests.support.launch.launching import ROOT

pytest_plugins = ["pytester"]

MODULE = """
import os, sys, time
import pytest
from tests.ranks.asserts import assert_same_bits, parallel_assert

def test_outside():
    assert "mpi4py.MPI" not in sys.modules

@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("number", [5])
def test_passes(comm, ranks, number, tmp_path):
    assert comm.size == ranks
    assert comm.allreduce(number) == number * ranks

@pytest.mark.ranks(3)
def test_fails_on_rank_1(comm):
    print(f"printed by {comm.rank}")
    assert comm.rank != 1, "wrong here"

@pytest.mark.ranks(3)
def test_asserts_together(comm):
    parallel_assert(comm, comm.rank < 2, f"found {comm.rank}")

@pytest.mark.ranks(3)
def test_different_bits(comm):
    assert_same_bits(comm, [comm.rank % 2], "sums")

@pytest.mark.ranks(3)
@pytest.mark.skip(reason="not today")
def test_is_skipped(comm):
    comm.Abort()

@pytest.mark.ranks(3)
@pytest.mark.xfail(reason="known")
def test_is_expected_to_fail(comm):
    assert comm.rank

@pytest.mark.ranks(2, timeout_s=2)
def test_hangs_on_rank_1(comm):
    while comm.rank == 1:
        time.sleep(0.1)

@pytest.mark.ranks(2)
def test_after_the_hang(comm):
    assert comm.size == 2

@pytest.mark.ranks(2)
def test_exits_on_rank_1(comm):
    if comm.rank == 1:
        print("last words")
        os._exit(3)
    comm.Barrier()

@pytest.mark.ranks(2)
def test_aborts(comm):
    if comm.rank == 0:
        comm.Abort(7)
    comm.Barrier()

@pytest.mark.ranks(2)
def test_after_the_abort(comm):
    assert comm.size == 2

@pytest.mark.ranks(2, env={"OF_A_TEST": "set"})
def test_environment():
    assert os.environ["OF_A_TEST"] == "set"
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs some of these tests in a pytest of their own."""
    folders = (ROOT, ROOT / "profiling", ROOT / "launch")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makeconftest('pytest_plugins = ["tests.ranks.plugin"]')
    pytester.makepyfile(test_it=MODULE)
    # Plugins of other packages take longer to import than the ranks to start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return lambda *arguments: pytester.runpytest_subprocess("-ra", "-v", *arguments)


def test_each_number_of_ranks_is_a_test(run):
    done = run("--collect-only", "-q", "-k", "passes or outside")
    for line in ("test_outside", "test_passes[[]1ranks-5]", "test_passes[[]2ranks-5]"):
        done.stdout.fnmatch_lines([f"*<Function {line}>"])


def test_a_failure_names_its_ranks(run):
    done = run("-k", "3ranks or outside")
    done.assert_outcomes(passed=1, failed=3, skipped=1, xfailed=1)
    done.stdout.fnmatch_lines(
        [
            "*rank 1 of 3: AssertionError: wrong here*",
            ">*assert comm.rank != 1*",
            "*Printed by rank 1*",
            "printed by 1",
            "*all 3 ranks: AssertionError: rank 2: found 2*",
            "*all 3 ranks: AssertionError: sums: ranks [[]1] hold other bits than rank 0*",
            "SKIPPED*not today",
            "XFAIL*known",
        ]
    )
    done.stdout.no_fnmatch_line("printed by 0")


@pytest.mark.long
def test_what_ends_a_job_is_told_and_the_next_test_has_another(run):
    done = run("-k", "2ranks")
    done.assert_outcomes(passed=4, failed=3)
    done.stdout.fnmatch_lines(
        [
            "*hangs_on_rank_1* FAILED*",
            "*after_the_hang* PASSED*",
            "*after_the_abort* PASSED*",
            "*rank 1 of 2: still in the test after 2 s",
            "*Printed by rank 1*",
            "*line * in test_hangs_on_rank_1",
            "*the process ended*",
            "last words",
        ]
    )


def test_modules_share_their_ranks(pytester, run):
    module = """
    import os, pathlib
    import pytest

    @pytest.mark.ranks(2)
    def test_it(comm):
        pids = comm.allgather(os.getpid())
        if comm.rank == 0:
            (pathlib.Path(__file__).parent / f"pids-{__name__}").write_text(str(pids))
    """
    pytester.makepyfile(test_one=module, test_two=module)
    run("test_one.py", "test_two.py").assert_outcomes(passed=2)
    one, two = ((pytester.path / f"pids-test_{name}").read_text() for name in ("one", "two"))
    assert one == two


def test_one_test_is_run_and_the_first_failure_ends_the_run(run):
    run("test_it.py::test_passes[2ranks-5]").assert_outcomes(passed=1)
    run("-x", "-k", "3ranks").assert_outcomes(failed=1)


@pytest.mark.long
def test_by_several_processes(run):
    done = run(
        "-p", "xdist.plugin", "-n", "2", "--dist", "loadfile", "-k", "passes or rank_1 and 3ranks"
    )
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["FAILED*rank 1 of 3: AssertionError: wrong here*"])


def test_ranks_that_do_not_start_are_told_once(pytester, run):
    pytester.makepyfile(test_it="import os\nassert 'OF_A_TEST' not in os.environ\n" + MODULE)
    done = run("-k", "environment")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*cannot collect the tests*", "*assert 'OF_A_TEST' not in *"])
