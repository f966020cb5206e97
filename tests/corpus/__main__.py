"""Records each program of the corpus and prints whether the verdict names its cause.

Its emulated hosts need root. Ends with 1 if fewer than 22 of 24 are named, or anybody is wrongly
blamed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hvd_ext.system.process import run_to_end
from hvprof.analysis.analysis import Analysis
from hvprof.recording.load import load
from hvprof.reporters.verdict import verdict
from testbed.emulated_hosts import emulated_hosts
from testbed.ranks import environment, last_lines
from tests.corpus.programs import PROGRAMS, Program

HERE = Path(__file__).parent
_LEAST_RIGHT, _TIMEOUT_S = 22 / 24, 300


@dataclass(frozen=True)
class Outcome:
    """What the verdict said of one program."""

    program: str
    expected: str
    said: str
    right: bool
    wrongly_blamed: list[int]
    sentence: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs (default: all)")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    options = parser.parse_args()
    chosen = [one for one in PROGRAMS if not options.names or one.name in options.names]
    if not chosen:
        parser.error(f"no such program: {' '.join(options.names)}")
    outcomes = []
    for program in chosen:
        outcomes.append(outcome_of(program))
        if not options.json:
            _print(outcomes[-1])
    right = sum(one.right for one in outcomes)
    blamed = sum(bool(one.wrongly_blamed) for one in outcomes)
    if options.json:
        print(json.dumps([asdict(one) for one in outcomes], indent=1))
    else:
        print(f"{right} of {len(outcomes)} named, {blamed} blame a rank wrongly")
    return 0 if right >= _LEAST_RIGHT * len(outcomes) and not blamed else 1


def outcome_of(program: Program) -> Outcome:
    """Record a program and compare the verdict with its cause."""
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "run"
        _record(program, recording)
        analysis = Analysis(load(recording))
    cause = analysis.cause
    kind = cause.kind if cause else "background"
    ranks = set(cause.ranks if cause else ())
    return Outcome(
        program=f"{program.folder}/{program.name}",
        expected=" or ".join(program.kinds),
        said=kind,
        right=kind in program.kinds and ranks == set(program.blamed),
        wrongly_blamed=sorted(ranks - set(program.blamed)),
        sentence=verdict(analysis).partition(". ")[0] + ".",
    )


def _record(program: Program, directory: Path) -> None:
    command = [sys.executable, "-m", "mpi4py", str(HERE / program.folder / f"{program.name}.py")]
    if program.hosts:
        with emulated_hosts(program.hosts, program.gbit) as hosts:
            _run(
                directory,
                [*hosts.mpirun(program.ranks // program.hosts), *_passing()],
                command,
                hosts.environment(),
            )
        return
    if "background" in program.kinds:
        _run(
            directory,
            ["horovodrun", "-np", str(program.ranks)],
            command[:1] + command[3:],
            program.variables,
        )
        return
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-np", str(program.ranks)]
    _run(directory, mpirun, command, program.variables)


def _passing() -> list[str]:
    names = ("PATH", "PYTHONPATH", "HVPROF_DIR", "HVPROF_TRACE", "LD_PRELOAD")
    return [word for name in names for word in ("-x", name)]


def _run(
    directory: Path, launcher: Sequence[str], command: Sequence[str], variables: dict[str, str]
) -> None:
    record = [sys.executable, "-m", "hvprof", "record", "-o", str(directory), "--"]
    yields = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    done = run_to_end(
        [*record, *launcher, *command], environment({**yields, **variables}), _TIMEOUT_S
    )
    if done.returncode:
        raise SystemExit(f"python -m tests.corpus: error: {last_lines(done.stdout)}")


def _print(outcome: Outcome) -> None:
    mark = "right" if outcome.right else "WRONG"
    blamed = f", wrongly blamed: {outcome.wrongly_blamed}" if outcome.wrongly_blamed else ""
    print(f"{mark}  {outcome.program}: expected {outcome.expected}, said {outcome.said}{blamed}")
    print(f"       {outcome.sentence}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
