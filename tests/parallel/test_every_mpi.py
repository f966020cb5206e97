"""What hvd_ext does with MPI, on every library of the list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_launch.backends.libraries import LIBRARIES as KNOWN
from hvd_launch.tune.allreduce.rank import MARK
from tests.on_every_mpi import LIBRARIES, ROOT, backend_of, run

PROGRAMS = ROOT / "tests" / "programs"
# For rules: what is chosen, and what takes several times as long from 64 KiB to 1 MiB.
SLOW = {"openmpi4": ("4 0", "5 64"), "openmpi5": ("4 0", "5 64"), "intelmpi": ("8", "3")}
FASTER = [16384, 32768, 2**21, 2**22]
SLOWER = [65536, 2**18, 2**20]


def test_every_library_is_in_the_list() -> None:
    run_here = {mpi.backend for mpi in LIBRARIES.values() if mpi.backend}
    assert {library.name for library in KNOWN.values() if library.tested} <= run_here


def test_planned_calls_and_the_arena_are_exact(library: Path) -> None:
    job = ("run", "-np", "2", "--", str(library / "python"), str(PROGRAMS / "planned_sums.py"))
    done = run(library, *job, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] all sums are exact" for r in (0, 1)]


def test_the_watchdog_names_a_missing_rank(library: Path) -> None:
    program = str(PROGRAMS / "missing_on_a_node.py")
    job = ("run", "-np", "2", "--", str(library / "python"), program, "1")
    done = run(library, *job, OMP_NUM_THREADS="1")
    told = done.stdout + done.stderr
    assert done.returncode == 75, told
    assert "rank 1 (node" in told
    assert "rank 0 (node" not in told


@pytest.mark.needs("slow rules")
def test_rules_by_size_hold_where_they_say_and_nowhere_else(library: Path, tmp_path: Path) -> None:
    """A slow algorithm from 64 KiB to 1 MiB: ratios of jobs in turns, the least of each."""
    backend = backend_of(library)
    fast, slow = SLOW[backend.name]
    found = backend.library
    rules = {"fast": [(0, fast)], "slow": [(0, fast), (65536, slow), (2**20 + 4, fast)]}
    least: dict[str, dict[int, float]] = {name: {} for name in rules}
    for _ in range(3):
        for name, by_size in rules.items():
            (tmp_path / name).mkdir(exist_ok=True)
            form = found.native_rules(backend.version, by_size, 2, tmp_path / name, None)
            assert form is not None
            if form.file is not None:
                (tmp_path / name / form.file).write_text(form.text)
            settings = (*found.candidates(1).ruled, *form.settings)
            times = job_times(library, {s.name: s.value for s in settings})
            for size, us in times.items():
                least[name][size] = min(us, least[name].get(size, us))
    ratios = {size: least["slow"][size] / least["fast"][size] for size in least["fast"]}
    slower, others = min(ratios[s] for s in SLOWER), max(ratios[s] for s in FASTER)
    assert slower > max(1.5, others), ratios


def job_times(library: Path, variables: dict[str, str]) -> dict[int, float]:
    """The least time of an allreduce of each size, in us."""
    task = json.dumps({"sizes": sorted(FASTER + SLOWER)})
    python = str(library / "python")
    job = ("run", "-np", "2", "--", python, "-m", "hvd_launch.tune.allreduce.rank", task)
    done = run(library, *job, OMP_NUM_THREADS="1", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [
        json.loads(line.partition(MARK)[2]) for line in done.stdout.splitlines() if MARK in line
    ]
    return {e["message_bytes"]: min(e["us"]) for e in told if e["kind"] == "time"}
