"""Runs PyTorch's own tests of DDP on the backend "hvd_ext", and on Gloo.

    pip install --no-deps expecttest
    python tests/programs/c10d/torchs_ddp_tests.py PYTORCH

PYTORCH is the folder of PyTorch's sources, of which tests are no part of its wheel; those of a
release that is a little older run, too. The tests are DistributedDataParallelTest's in
test_c10d_gloo.py. They start their ranks themselves, without MPI. What Gloo passes and "hvd_ext"
does not is listed at the end; the exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

import torch.distributed as dist

import hvd_ext.c10d  # noqa: F401
from hvd_ext.c10d.backend.core import GroupCore

BACKENDS = ("gloo", "hvd_ext")
BACKEND, FOLDER = "HVD_EXT_TEST_BACKEND", "HVD_EXT_TEST_FOLDER"
CASES = "DistributedDataParallelTest"
_TIMEOUT_S = 1800
Outcomes = dict[str, tuple[str, str]]  # by test: passed, skipped or failed, and why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pytorch", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.pytorch.resolve() / "test" / "distributed"
    if not (folder / "test_c10d_gloo.py").exists():
        parser.error(f"{folder} has no test_c10d_gloo.py: name the folder of PyTorch's sources")
    if options.worker:
        work()
        return 0
    found = {name: outcomes(name, folder) for name in BACKENDS}
    for name, by_test in found.items():
        print(f"{name}: {dict(Counter(outcome for outcome, _ in by_test.values()))}")
    missed = {
        test: why
        for test, (outcome, why) in found["hvd_ext"].items()
        if outcome != "passed" and found["gloo"][test][0] == "passed"
    }
    for test, why in missed.items():
        print(f"  {test}: {why}")
    return int(bool(missed))


def outcomes(backend: str, folder: Path) -> Outcomes:
    """Run all tests on one backend."""
    environment = {**os.environ, BACKEND: backend, FOLDER: str(folder), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, str(folder.parents[1]), "--worker"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('["test_')]
    if done.returncode or not lines:
        raise SystemExit(f"{backend}: no test ended: {done.stderr[-2000:]}")
    return {test: (outcome, why) for test, outcome, why in map(json.loads, lines)}


def work() -> None:
    """Run the tests, and print a line for each."""
    import test_c10d_gloo

    kind = getattr(test_c10d_gloo, CASES)
    for test in unittest.defaultTestLoader.loadTestsFromTestCase(kind):
        result = unittest.TestResult()
        test.run(result)
        outcome, why = "passed", ""
        if result.skipped:
            outcome, why = "skipped", result.skipped[0][1]
        for _, trace in (*result.errors, *result.failures):
            outcome, why = "failed", trace.strip()[-600:]
        print(json.dumps([test._testMethodName, outcome, why]), flush=True)


def on_the_backend(begin: Any) -> Any:
    """`init_process_group`, of the backend that is judged where Gloo is asked for."""

    def on_backend(backend: str | None = None, *arguments: Any, **named: Any) -> Any:
        if backend == "gloo":
            backend = os.environ[BACKEND]
        return begin(backend, *arguments, **named)

    return on_backend


# In the ranks, too: they import this program before they run a test.
if BACKEND in os.environ:
    dist.init_process_group = on_the_backend(dist.init_process_group)
    # Tests choose the interface of Gloo's connections, which are none of this backend's.
    GroupCore.create_device = staticmethod(lambda interface: None)  # type: ignore[attr-defined]

if __name__ == "__main__":
    sys.exit(main())
