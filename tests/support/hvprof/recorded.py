"""Run programs with known traffic under hvprof, and read what it recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import hvprof

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / "tests" / "programs" / "hvprof"
RECORDER = ROOT / "profiling" / "hvprof" / "recorder"
BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "profiling")]),
    "OMP_NUM_THREADS": "1",
    # Waiting ranks must yield the cores that they share.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "MV2_ENABLE_AFFINITY": "0",
}
# Ends the job, not only the rank, when a program raises.
PYTHON = [sys.executable, "-m", "mpi4py"]
RECORD = [sys.executable, "-m", "hvprof", "record"]


def run(
    command: Sequence[str | Path],
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)),
        env=environment or ENVIRONMENT,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def mpirun(ranks: int, bin_folder: Path = BIN) -> list[str]:
    launcher = str(bin_folder / "mpirun") if (bin_folder / "mpirun").exists() else "mpirun"
    version = run([launcher, "--version"]).stdout
    extra = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version else []
    return [launcher, *extra, "-np", str(ranks)]


def record(directory: Path, ranks: int, program: str, *options: str) -> hvprof.Recording:
    return _recorded(directory, ranks, [PROGRAMS / program], options)


def record_code(directory: Path, ranks: int, code: str) -> hvprof.Recording:
    return _recorded(directory, ranks, ["-c", code])


def _recorded(
    directory: Path, ranks: int, program: Sequence[str | Path], options: Sequence[str] = ()
) -> hvprof.Recording:
    command = [*mpirun(ranks), *PYTHON, *program]
    done = run([*RECORD, *options, "-o", directory, "--", *command])
    assert done.returncode == 0, done.stderr
    (directory / "output.txt").write_text(done.stdout)
    return hvprof.load(directory)


# Calls that make and free communicators, types, groups and windows.
_MAKING = ("comm_", "type_", "group_", "win_create", "win_allocate", "win_free")


def totals(
    rank: hvprof.RankRecording, traffic: str = "data", *, with_making: bool = False
) -> dict[str, tuple[int, int]]:
    """Calls and bytes of each operation, with or without those that only make things."""
    found: dict[str, tuple[int, int]] = {}
    for cell in rank.cells:
        if cell.traffic == traffic and (with_making or not cell.operation.startswith(_MAKING)):
            calls, message_bytes = found.get(cell.operation, (0, 0))
            found[cell.operation] = (calls + cell.calls, message_bytes + cell.message_bytes)
    return found


def own_counts(path: Path) -> dict[str, tuple[int, int]]:
    """What a program counted itself: a line for each operation, with its calls and bytes."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: (int(calls), int(message_bytes)) for name, calls, message_bytes in lines}


def check_known_regions(recording: hvprof.Recording) -> None:
    """Of programs that mark three steps and two regions, and leave every second sum out."""
    for rank in recording.ranks:
        regions = {one.name: (one.kind, one.calls) for one in rank.regions}
        assert regions.pop("step") == ("other", 3)
        assert regions == {"solver": ("compute", 3), "output": ("io", 3)}
        assert totals(rank)["allreduce"] == (3, 24)
        assert rank.step_count == 3


def own_mpi() -> Path:
    """The folder of this environment's mpicc."""
    return BIN if (BIN / "mpicc").exists() else Path(shutil.which("mpicc") or BIN).parent
