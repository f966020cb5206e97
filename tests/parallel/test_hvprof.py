"""hvprof against programs whose traffic is known, through real launches."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hvprof

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
SOURCES = ROOT / "profiling" / "hvprof"
BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "profiling")]),
    "OMP_NUM_THREADS": "1",
}
# Ends the job, not only the rank, when a program raises.
PYTHON = [sys.executable, "-m", "mpi4py"]
RECORD = [sys.executable, "-m", "hvprof", "record"]


def run(
    command: list[str | Path], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)),
        env=environment or ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def mpirun(ranks: int, bin_folder: Path = BIN) -> list[str]:
    launcher = str(bin_folder / "mpirun") if (bin_folder / "mpirun").exists() else "mpirun"
    version = run([launcher, "--version"]).stdout
    extra = [] if "HYDRA" in version else ["--allow-run-as-root", "--oversubscribe"]
    return [launcher, *extra, "-np", str(ranks)]


def record(directory: Path, ranks: int, program: str) -> hvprof.Recording:
    done = run([*RECORD, "-o", directory, "--", *mpirun(ranks), *PYTHON, PROGRAMS / program])
    assert done.returncode == 0, done.stderr
    return hvprof.load(directory)


def totals(rank: hvprof.RankRecording, traffic: str = "data") -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for cell in rank.cells:
        if cell.traffic == traffic:
            calls, message_bytes = found.get(cell.operation, (0, 0))
            found[cell.operation] = (calls + cell.calls, message_bytes + cell.message_bytes)
    return found


EDGES = [0, 1, 2, 3, 1023, 1024, 1025, 2**17, 2**17 + 1, 2**24, 2**24 + 1]


def known_messages(rank: int, size: int) -> dict[str, list[int]]:
    """Bytes of each call of known_traffic.py."""
    return {
        "allreduce": [*EDGES, 80, 8, *[16] * 600],
        "iallreduce": [8],
        "reduce": [8],
        "scan": [8],
        "exscan": [8],
        "reduce_scatter_block": [8 * size],
        "reduce_scatter": [4 * (size + 1)],
        "bcast": [24],
        "ibcast": [24],
        "allgather": [24 * size] * 2,
        "allgatherv": [24 * size],
        "gather": [24],
        "gatherv": [24],
        "scatter": [24],
        "scatterv": [24],
        "alltoall": [24 * size],
        "alltoallv": [24 * size] * 2,
        "barrier": [0],
        "ibarrier": [0],
        "sendrecv": [10],
        "send": [10],
        "isend": [10],
        "recv": [10],
        "irecv": [10],
    }


@pytest.mark.parametrize("size", [1, 2, 3])
def test_counts_and_bytes_are_exact(size: int, tmp_path: Path) -> None:
    recording = record(tmp_path / "run", size, "known_traffic.py")
    assert [rank.rank for rank in recording.ranks] == list(range(size))
    for rank in recording.ranks:
        known = known_messages(rank.rank, size)
        assert {cell.operation for cell in rank.cells} == set(known)
        assert rank.state == "finalized"
        assert rank.dropped_calls == 0
        found = dict.fromkeys(known, 0)
        for cell in rank.cells:
            within = [b for b in known[cell.operation] if cell.low_bytes <= b <= cell.high_bytes]
            assert (cell.calls, cell.message_bytes) == (len(within), sum(within)), cell
            assert (cell.traffic, cell.source, cell.algorithm) == ("data", "mpi", "native")
            assert cell.size == size
            assert 0 <= cell.min_s <= cell.time_s / cell.calls <= cell.max_s <= cell.time_s
            found[cell.operation] += cell.calls
        assert found == {operation: len(of_it) for operation, of_it in known.items()}


def test_the_report_has_the_same_figures(tmp_path: Path) -> None:
    record(tmp_path / "run", 2, "known_traffic.py")
    done = run([sys.executable, "-m", "hvprof", "report", tmp_path / "run", "--json"])
    report = json.loads(done.stdout)
    rows = {row["message_size"]: row for row in report["data"] if row["operation"] == "allreduce"}
    calls = {size: row["calls"] for size, row in rows.items()}
    # 0, 1, 2, 3, 1023, 80, 8 and the threads' 600 · 1024 to 2^17 · to 2^24 · 2^24 + 1
    assert calls == {"<1 KB": 2 * 607, "1-128 KB": 2 * 3, "128 KB-16 MB": 2 * 2, "16-32 MB": 2}
    assert rows["16-32 MB"]["message_bytes"] == 2 * (2**24 + 1)
    # Over two ranks an allreduce's bus bandwidth is its bandwidth.
    assert rows["16-32 MB"]["busbw_gb_s"] == pytest.approx(rows["16-32 MB"]["algbw_gb_s"])
    text = run([sys.executable, "-m", "hvprof", "report", tmp_path / "run"]).stdout
    assert re.search(r"allreduce +<1 KB +607 ", text)


def test_own_reductions_are_counted_once(tmp_path: Path) -> None:
    for rank in record(tmp_path / "run", 2, "own_reductions.py").ranks:
        assert totals(rank, "transport") == {"allreduce": (3, 12000)}
        assert totals(rank)["exposed"] == (1, 4000)
        own = next(cell for cell in rank.cells if cell.algorithm == "hierarchical")
        assert (own.source, own.calls, own.message_bytes) == ("hvd_ext", 3, 12000)
        assert (own.wait_s, own.time_s) == (0.75, 2.25)
        assert (own.low_bytes, own.high_bytes) == (2049, 4095)
        # Two more of the program's own, after the name was taken away and after the free.
        assert totals(rank)["allreduce"] == (5, 20000)


def test_a_killed_rank_is_still_read(tmp_path: Path) -> None:
    command = [*mpirun(2), *PYTHON, PROGRAMS / "killed_rank.py"]
    done = run([*RECORD, "-o", tmp_path / "run", "--", *command])
    assert done.returncode != 0
    recording = hvprof.load(tmp_path / "run")
    assert recording.exit_code == done.returncode
    assert recording.ranks[1].state == "unfinished"
    assert [totals(rank)["allreduce"] for rank in recording.ranks] == [(100, 400000)] * 2
    text = run([sys.executable, "-m", "hvprof", "report", tmp_path / "run"]).stdout
    assert re.search(r"warning: ranks? .*1 did not finish", text)


def test_a_second_job_does_not_disturb_the_first(tmp_path: Path) -> None:
    twice = (
        f"{' '.join(mpirun(1))} {sys.executable} {PROGRAMS / 'own_reductions.py'}; "
        f"{' '.join(mpirun(1))} {sys.executable} {PROGRAMS / 'known_traffic.py'}"
    )
    done = run([*RECORD, "-o", tmp_path / "run", "--", "sh", "-c", twice])
    assert done.returncode == 0
    assert "rank 0 is not recorded" in done.stderr
    assert "a recording holds one MPI job" in done.stderr
    assert totals(hvprof.load(tmp_path / "run").ranks[0], "transport") == {"allreduce": (3, 12000)}


def test_another_preload_stays_behind_ours(tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    source = tmp_path / "other.c"
    source.write_text("int of_the_other(void) { return 7; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", other], check=True)
    program = (
        "import ctypes, os; from mpi4py import MPI; MPI.COMM_WORLD.Barrier();"
        "print(ctypes.CDLL(None).of_the_other(), os.environ['LD_PRELOAD'])"
    )
    done = run(
        [*RECORD, "-o", tmp_path / "run", "--", *mpirun(1), sys.executable, "-c", program],
        {**ENVIRONMENT, "LD_PRELOAD": str(other)},
    )
    assert done.stdout == f"7 {SOURCES / 'libhvprof.so'}:{other}\n"
    assert totals(hvprof.load(tmp_path / "run").ranks[0]) == {"barrier": (1, 0)}


def test_horovod_runs_to_the_same_result(tmp_path: Path) -> None:
    command = ["horovodrun", "-np", "2", sys.executable, PROGRAMS / "horovod_allreduce.py"]
    plain = run(command)
    recorded = run([*RECORD, "-o", tmp_path / "run", "--", *command])
    # mpirun may tag the middle of a line, which then is no longer one word.
    outputs = [re.sub(r"\[1,\d+\]<std\w+>:", "", done.stdout) for done in (plain, recorded)]
    results = [re.findall(r"result (\S+)", output) for output in outputs]
    assert results[0] == results[1]
    assert len(results[0]) == 1, plain.stderr
    for rank in hvprof.load(tmp_path / "run").ranks:
        data, control = totals(rank), totals(rank, "control")
        assert set(data) == {"allreduce"}
        calls, message_bytes = data["allreduce"]
        assert message_bytes == 20 * (4000 + 8000 + 4000 + 600)
        assert 60 <= calls <= 80
        assert {"allreduce", "gather", "gatherv", "bcast"} <= set(control)
        assert control["allreduce"][0] >= calls / 2
        # Bit vectors of 8 to 16 bytes.
        assert control["allreduce"][1] <= 16 * control["allreduce"][0]


def installed_mpis() -> list[Path]:
    """The folders of mpicc: this environment's, and the others that `make mpis` made."""
    found = [BIN if (BIN / "mpicc").exists() else Path(shutil.which("mpicc") or BIN).parent]
    return found + [path.parent for path in sorted(ROOT.glob(".venvs/*/bin/mpicc"))]


@pytest.mark.parametrize("folder", installed_mpis(), ids=lambda folder: folder.parent.name)
def test_c_programs_on_every_mpi(folder: Path, tmp_path: Path) -> None:
    library, program = tmp_path / "libhvprof.so", tmp_path / "program"
    mpicc = folder / "mpicc"
    # Linked with libmpi or not, both ways of finding the program's MPI must work.
    for flags in ([], ["-Wl,--as-needed"]):
        subprocess.run(
            [mpicc, "-shared", "-fPIC", "-O2", *flags, SOURCES / "pmpi.c", "-o", library],
            check=True,
        )
        subprocess.run([mpicc, PROGRAMS / "known_traffic.c", "-o", program], check=True)
        directory = tmp_path / f"run{len(flags)}"
        directory.mkdir()
        preload = {"HVPROF_DIR": str(directory), "LD_PRELOAD": str(library)}
        path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        done = run([*mpirun(2, folder), program], {**ENVIRONMENT, **path, **preload})
        assert done.returncode == 0, done.stderr
        for rank in hvprof.load(directory).ranks:
            assert totals(rank) == {"allreduce": (6, 48000), "bcast": (1, 10)}
            assert totals(rank, "transport") == {"barrier": (1, 0)}
            assert rank.state == "finalized"


def test_the_overhead_benchmark_runs(tmp_path: Path) -> None:
    arguments = ["--calls", "1000", "--samples", "1", "--json", tmp_path / "overhead.json"]
    done = run([sys.executable, "-m", "benchmarks.profiler_overhead", *arguments])
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "overhead.json").read_text())
    assert {"overhead_us_per_call", "overhead_percent"} <= set(figures)
