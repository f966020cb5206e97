"""Installs and tests the project with several versions of Python and PyTorch.

Each cell of the matrix is an environment in build/matrix, a training on two ranks, the tests of
the imports and of the private names of PyTorch and Horovod, and a core of the tests with ranks.
The results are written after each cell. A second call resumes: it runs the cells that have not
passed yet. Standard library only.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import make_env
from workshop import ROOT, Failure, Workshop

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
OLDEST = "2.9.1"
TORCHES = ("oldest", "pinned", "newest")
HOROVODS = ("horovod==0.28.1", "no")
RESULTS = ROOT / "docs" / "benchmarks" / "support_matrix.json"
FOLDER = ROOT / "build" / "matrix"
IMPORTS = (
    *(f"tests/single/test_{name}.py" for name in ("imports", "private_names", "exports")),
    *(f"tests/single/{part}/test_torch_internals.py" for part in ("optimizer", "spatial", "c10d")),
)
CORE = (
    "tests/parallel/allreduce/test_algorithms.py",
    "tests/parallel/arena/test_sums.py",
    "tests/parallel/c10d/test_ddp_bits.py",
    "tests/parallel/data/test_exchange.py",
    "tests/parallel/hvprof/test_steps.py",
    "tests/parallel/job/test_regions.py",
    "tests/parallel/optimizer/test_contract.py",
    "tests/parallel/optimizer/test_sharding_patterns.py",
    "tests/parallel/spatial/test_groups.py",
    "tests/parallel/trainers/test_examples.py",
)
# The same without Horovod: what starts ranks by horovodrun gives way to the interface alone.
WITHOUT_HOROVOD = (
    "tests/parallel/allreduce/test_algorithms.py",
    "tests/parallel/arena/test_sums.py",
    "tests/parallel/c10d/test_ddp_bits.py",
    "tests/parallel/data/test_exchange.py",
    "tests/parallel/job/test_regions.py",
    "tests/parallel/spatial/test_groups.py",
    "tests/parallel/standalone/test_collectives.py",
    "tests/parallel/standalone/test_training.py",
)
JOB = ("-m", "hvd_launch", "run", "-np", "2", "--")


@dataclass(frozen=True)
class Cell:
    """One combination, such as Python "3.11", torch "2.13.0" and Horovod "horovod==0.28.1".

    Attributes:
        python: its version.
        torch: its version.
        horovod: a pin, "no", or the path of an sdist or a checkout.
    """

    python: str
    torch: str
    horovod: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Python, torch and Horovod as the results name them: a checkout by its folder."""
        return (self.python, self.torch, Path(self.horovod).name)

    @property
    def folder(self) -> Path:
        """Its environment."""
        python, torch, horovod = self.key
        return FOLDER / f"python-{python}_torch-{torch}_{horovod.replace('==', '-')}"

    def steps(self, python: str) -> dict[str, tuple[Sequence[str], int]]:
        """The command and the limit in s of each step; `python` makes the environment."""
        made = str(self.folder / "bin" / "python")
        pytest = (made, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long")
        script = str(ROOT / "toolchain" / "make_env.py")
        choice = ("--torch", self.torch, "--horovod", self.horovod)
        core = WITHOUT_HOROVOD if self.horovod == "no" else CORE
        return {
            "environment": ((python, script, "--venv", str(self.folder), *choice), 3600),
            "digits": ((made, *JOB, made, "examples/digits.py"), 300),
            "imports": ((made, *pytest[1:], *IMPORTS), 900),
            "core": ((made, *pytest[1:], *core), 1800),
        }


def interpreter(version: str) -> str | None:
    """A Python of this version, such as "3.12": on PATH or one of pyenv's, with its headers."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [shutil.which(f"python{version}"), sys.executable]
    places += map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))
    code = (
        "import sys, sysconfig, os, venv, ensurepip; h = sysconfig.get_path('include')"
        "; print('%d.%d' % sys.version_info[:2], os.path.exists(h + '/Python.h'))"
    )
    for place in filter(None, places):
        done = subprocess.run([place, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.split() == [version, "True"]:
            return place
    return None


@functools.cache
def available(python: str, pip: tuple[str, ...]) -> list[str]:
    """The versions of torch with a wheel for this Python, newest first.

    Raises:
        Failure: pip cannot ask the package index.
    """
    options = ("--python-version", python, "--only-binary", ":all:")
    command = [*pip, "index", "versions", "torch", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if listed is None:
        raise Failure(f"pip lists no torch for Python {python}: {done.stderr.strip()[-200:]}")
    plain = (version.partition("+")[0] for version in listed[1].split(", "))
    return list(dict.fromkeys(plain))


def torch_versions(python: str, names: Sequence[str], pip: tuple[str, ...]) -> Iterator[str]:
    """The versions that "oldest", "pinned", "newest" or a version mean for this Python."""
    known = {"oldest": OLDEST, "pinned": make_env.pinned("torch").partition("==")[2]}
    if "newest" in names:
        known["newest"] = available(python, pip)[0]
    yield from dict.fromkeys(known.get(name, name) for name in names)


def attempt(command: Sequence[str], limit_s: int, path: str, log: Path) -> str | None:
    """Run a step, its output appended to the log; returns what went wrong."""
    kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    env = {**kept, "OMP_NUM_THREADS": "1", "PATH": f"{path}{os.pathsep}{kept['PATH']}"}
    with log.open("a+", encoding="utf-8", errors="replace") as file:
        start = file.seek(0, os.SEEK_END)
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **streams)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"not done after {limit_s} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        file.seek(start)
        lines = file.read().strip().splitlines()
    # A launcher says more after an error of its ranks.
    errors = [line for line in lines if re.search(r"\w(Error|Exception)\b|error:|failed", line)]
    return None if code == 0 else (errors or lines or [f"exit {code}"])[-1]


def test(cell: Cell, python: str, keep: bool) -> dict[str, Any]:
    """Run the steps of a cell up to the first that fails; its result."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    log = FOLDER / f"{cell.folder.name}.log"
    log.unlink(missing_ok=True)
    result: dict[str, Any] = {"status": "passed", "times_s": {}}
    try:
        for step, (command, limit_s) in cell.steps(python).items():
            began_s = time.monotonic()
            wrong = attempt(command, limit_s, str(cell.folder / "bin"), log)
            result["times_s"][step] = round(time.monotonic() - began_s)
            if wrong is not None:
                return {**result, "status": "failed", "why": f"{step}: {wrong}"}
        return {**result, "versions": versions(cell)}
    finally:
        if not keep:
            shutil.rmtree(cell.folder, ignore_errors=True)


def versions(cell: Cell) -> dict[str, str]:
    """The versions of Python and of the packages that libraries are compiled against."""
    made = json.loads(Workshop(cell.folder).stamp.read_text(encoding="utf-8"))
    python = made["environment"]["python"].partition(" ")[0]
    return {"python": python, "mpi": made["environment"]["mpi"], **made["held"]}


def run(
    cells: Sequence[Cell], again: bool, keep: bool, pip: tuple[str, ...]
) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Test the cells, and write the results after each; returns the results of these and others."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))["cells"] if RESULTS.exists() else []
    results = {(c["python"], c["torch"], c["horovod"]): c for c in found}
    for cell in cells:
        name = f"Python {cell.python}, torch {cell.torch}, {cell.horovod}"
        if results.get(cell.key, {}).get("status") == "passed" and not again:
            print(f"matrix: {name}: passed on {results[cell.key]['date']}", flush=True)
            continue
        print(f"matrix: {name} ...", flush=True)
        python = interpreter(cell.python)
        if python is None:
            why = f"no Python {cell.python} with its headers on PATH or in pyenv"
            result: dict[str, Any] = {"status": "skipped", "why": why}
        elif cell.torch not in available(cell.python, pip):
            why = f"torch {cell.torch} has no wheel for Python {cell.python}"
            result = {"status": "skipped", "why": why}
        else:
            result = test(cell, python, keep)
        print(f"matrix: {name}: {result['status']} {result.get('why', '')}", flush=True)
        about = dict(zip(("python", "torch", "horovod"), cell.key, strict=True))
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        results[cell.key] = {**about, "date": today, **result}
        write(list(results.values()))
    return results


def ordered(version: str) -> list[int]:
    """A key that sorts versions."""
    return [int(number) for number in re.findall(r"\d+", version)]


def write(cells: list[dict[str, Any]]) -> None:
    """Write the results, in the order of the versions."""
    cells.sort(key=lambda cell: (ordered(cell["python"]), ordered(cell["torch"]), cell["horovod"]))
    machine = {"system": platform.platform(), "cores": os.cpu_count()}
    text = json.dumps({"machine": machine, "cells": cells}, indent=2) + "\n"
    draft = RESULTS.with_suffix(".draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(RESULTS)


def show(cells: list[dict[str, Any]]) -> None:
    """Print the results as a table."""
    rows = [("Python", "torch", "Horovod", "result", "date", "s")]
    for cell in cells:
        time_s = str(sum(cell.get("times_s", {}).values()))
        words = (cell["status"], cell["date"], time_s)
        rows.append((cell["python"], cell["torch"], cell["horovod"], *words))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)))


def main() -> None:
    """Test the cells that are asked for; exit with 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: make matrix PYTHONS='3.11 3.12' TORCHES=pinned"
    )
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="VERSION")
    parser.add_argument(
        "--torch", nargs="+", default=TORCHES, metavar="VERSION", help="or oldest, pinned, newest"
    )
    parser.add_argument(
        "--horovod", nargs="+", default=HOROVODS, metavar="SOURCE", help="as for make env"
    )
    parser.add_argument("--again", action="store_true", help="run the cells that passed, too")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    chosen = parser.parse_args()
    pip = (str(FOLDER / "pip" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
    try:
        Workshop(FOLDER / "pip").create()
        cells = [
            Cell(python, torch, horovod)
            for python, horovod in itertools.product(chosen.python, chosen.horovod)
            for torch in torch_versions(python, chosen.torch, pip)
        ]
        results = run(cells, chosen.again, chosen.keep, pip)
    except Failure as failure:
        sys.exit(f"matrix: error: {failure}")
    show([results[cell.key] for cell in cells])
    sys.exit(any(results[cell.key]["status"] == "failed" for cell in cells))


if __name__ == "__main__":
    main()
