"""`make test` and its parts: what fails hides nothing that comes after it."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def stub(path: Path, code: str) -> Path:
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("fails", ["mpich5", "tests/single", "tests/parallel", "nothing"])
def test_every_part_is_run_and_the_end_fails(fails: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = f'echo "$*" >> {log}; case "$*" in *{fails}*) exit 1;; esac'
    command = ["make", f"PYTHON={stub(tmp_path / 'python', code)}"]
    command += [f"PYTEST={stub(tmp_path / 'pytest', code)}", "test", "MAKEFLAGS="]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == (fails != "nothing"), done.stderr
    ran = log.read_text()
    for part in ("openmpi5", "mpich5", "intelmpi", "tests/single tests/fuzz", "tests/parallel"):
        assert part in ran
    # A test that fails next to another one is run again alone.
    assert ("--last-failed" in ran) == fails.startswith("tests")


def test_what_tests_start_gets_the_default_sigint(tmp_path: Path) -> None:
    """A shell ignores it for what it starts in the background: `make test &`."""
    test = tmp_path / "test_started.py"
    test.write_text(
        "import subprocess, sys\n"
        "def test_started(launch):\n"
        "    code = 'import signal; print(signal.getsignal(signal.SIGINT))'\n"
        "    own = subprocess.check_output([sys.executable, '-c', code], text=True)\n"
        "    assert 'default_int_handler' in own\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), str(test)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert done.returncode == 0, done.stdout


def test_no_numpy_is_allowed_that_cannot_refuse_to_copy() -> None:
    """`asarray(copy=False)` is new in NumPy 2."""
    needs = map(Requirement, importlib.metadata.requires("hvd-ext") or ())
    (numpy,) = (need for need in needs if need.name == "numpy" and not need.marker)
    assert not numpy.specifier.contains("1.26.4")
    assert numpy.specifier.contains("2.0.0")
