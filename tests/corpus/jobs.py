"""Starts a program of the corpus: recorded by hvprof, or timed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvd_ext.system.process import run_to_end
from testbed.emulated_hosts import emulated_hosts
from testbed.ranks import JobError, environment, last_lines, launch
from tests.corpus.programs import Program

_HERE = Path(__file__).parent
_TIMEOUT_S = 300
_YIELDS = {"OMPI_MCA_mpi_yield_when_idle": "1"}
_PASSED = ("PATH", "PYTHONPATH", "HVPROF_DIR", "HVPROF_TRACE", "LD_PRELOAD")


@dataclass(frozen=True)
class _Launcher:
    words: list[str]
    variables: dict[str, str]


def record(program: Program, directory: Path) -> None:
    """Record a program's run in a directory.

    Raises:
        JobError: it failed.
    """
    path = str(_HERE / program.folder / f"{program.name}.py")
    if "background" in program.kinds:
        launcher = _Launcher(["horovodrun", "-np", str(program.ranks)], {})
        _record(directory, launcher, [sys.executable, path], program.variables)
        return
    with _launcher(program, program.ranks) as launcher:
        _record(directory, launcher, [sys.executable, "-m", "mpi4py", path], program.variables)


def time_s(program: Program, *, advised: bool) -> float:
    """Time a program on its ranks, or on the advised number of them, as its advice would have it.

    Raises:
        JobError: it failed.
    """
    folder = _HERE / "advised" / program.folder if advised else _HERE / program.folder
    ranks = program.advised_ranks or program.ranks if advised else program.ranks
    with _launcher(program, ranks) as launcher:
        found = launch(
            "tests.corpus.timed",
            ranks,
            [str(folder / f"{program.name}.py")],
            _TIMEOUT_S,
            launcher.words,
            {**_YIELDS, **launcher.variables, **program.variables},
        )
    return float(found)


@contextmanager
def _launcher(program: Program, ranks: int) -> Iterator[_Launcher]:
    """The mpirun that starts the ranks on this machine, or on the program's emulated hosts."""
    if program.hosts:
        with emulated_hosts(program.hosts, program.gbit) as hosts:
            passed = [word for name in _PASSED for word in ("-x", name)]
            words = [*hosts.mpirun(ranks // program.hosts), *passed]
            yield _Launcher(words, hosts.environment())
        return
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    yield _Launcher(
        ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-np", str(ranks)], {}
    )


def _record(
    directory: Path, launcher: _Launcher, command: Sequence[str], variables: dict[str, str]
) -> None:
    recorder = [sys.executable, "-m", "hvprof", "record", "-o", str(directory), "--"]
    done = run_to_end(
        [*recorder, *launcher.words, *command],
        environment({**_YIELDS, **launcher.variables, **variables}),
        _TIMEOUT_S,
    )
    if done.returncode:
        raise JobError(last_lines(done.stdout))
