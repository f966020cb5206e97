"""What hvd_ext does with MPI, on every library of the list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_launch.backends.libraries import LIBRARIES as KNOWN
from hvd_launch.backends.tuning import RuleRequest
from hvd_launch.tune.allreduce.rank import MARK
from tests.support.launch.on_every_mpi import LIBRARIES, ROOT, backend_of, can, run

PROGRAMS = ROOT / "tests" / "programs" / "arena"
# For rules: what is chosen, and what takes longer from 64 KiB to 1 MiB.
SLOW = {"intelmpi": ("8", "3")}
# How far the sizes with the slow one stand out from the others at least, on a busy machine too.
MARGIN = 1.2
OTHERS = [16384, 32768, 2**21, 2**22]
SLOWER = [65536, 2**18, 2**20]


def test_every_library_is_in_the_list() -> None:
    # "environment" is Open MPI 4, unless a site chose its own.
    run_here = {"openmpi4", *(mpi.backend for mpi in LIBRARIES.values())}
    assert {library.name for library in KNOWN.values() if library.tested} <= run_here


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_planned_calls_and_the_arena_are_exact(library: Path) -> None:
    job = ("run", "-np", "2", "--", str(library / "python"), str(PROGRAMS / "planned_sums.py"))
    done = run(library, *job, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] all sums are exact" for r in (0, 1)]


@pytest.mark.parametrize(
    "library",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name not in ("environment", "mpich5")))
        for name in LIBRARIES
    ],
    indirect=True,
)
def test_torch_distributed_is_exact(library: Path) -> None:
    torch = pytest.importorskip("torch")
    program = str(PROGRAMS.parent / "c10d" / "on_any_mpi.py")
    job = ("run", "-np", "2", "--", str(library / "python"), program)
    torch_in = str(Path(torch.__file__).parents[1])
    done = run(library, *job, OMP_NUM_THREADS="1", HVD_EXT_TEST_TORCH=torch_in)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] all is exact" for r in (0, 1)]


def test_the_watchdog_names_a_missing_rank(library: Path) -> None:
    program = str(PROGRAMS / "missing_on_a_node.py")
    job = ("run", "-np", "2", "--", str(library / "python"), program, "1")
    done = run(library, *job, OMP_NUM_THREADS="1")
    told = done.stdout + done.stderr
    assert done.returncode == 75, told
    if can(library, "last words"):
        assert "rank 1 (node" in told
    assert "rank 0 (node" not in told


@pytest.mark.needs("slow rules")
def test_rules_by_size_hold_where_they_say_and_nowhere_else(library: Path) -> None:
    """A slow algorithm from 64 KiB to 1 MiB: ratios of jobs in turns, the least of each size."""
    backend = backend_of(library)
    fast, slow = SLOW[backend.name]
    rules = {"fast": [(0, fast)], "slow": [(0, fast), (65536, slow), (2**20 + 4, fast)]}
    least: dict[str, dict[int, float]] = {name: {} for name in rules}
    for number in range(10):
        for name, by_size in rules.items():
            form = backend.library.native_rules(RuleRequest(backend.version, by_size, 2, Path()))
            assert form is not None
            times = job_times(library, {s.name: s.value for s in form.settings})
            least[name] = {size: min(us, least[name].get(size, us)) for size, us in times.items()}
        ratios = {size: least["slow"][size] / least["fast"][size] for size in least["fast"]}
        # Where other programs use the cores too, more turns are needed.
        others = max(ratios[size] for size in OTHERS)
        if number and min(ratios[size] for size in SLOWER) > MARGIN * others:
            return
    raise AssertionError(ratios)


def job_times(library: Path, variables: dict[str, str]) -> dict[int, float]:
    """The least time of an allreduce of each size, in us."""
    task = json.dumps({"sizes": sorted(OTHERS + SLOWER)})
    python = str(library / "python")
    job = ("run", "-np", "2", "--", python, "-m", "hvd_launch.tune.allreduce.rank", task)
    done = run(library, *job, OMP_NUM_THREADS="1", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [
        json.loads(line.partition(MARK)[2]) for line in done.stdout.splitlines() if MARK in line
    ]
    return {e["message_bytes"]: min(e["us"]) for e in told if e["kind"] == "time"}
