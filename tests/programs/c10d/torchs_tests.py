"""Runs PyTorch's own tests of torch.distributed on the backend "hvd_ext", and on Gloo.

    pip install --no-deps expecttest
    python tests/programs/c10d/torchs_tests.py 2

on 2 ranks. They are PyTorch's `distributed_test`, each on a default group that is made for it. A
test that fails on one rank may leave the others in a collective, so the job ends with it, and
another job continues with the next test. What Gloo passes and "hvd_ext" does not is listed at the
end; the exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BACKENDS = ("gloo", "hvd_ext")
# These make a model for the backends that they name alone, so "hvd_ext" takes Gloo's place in them.
_OF_NAMED_BACKENDS = "test_accumulate_gradients_no_sync"
# A test that takes longer is one that waits for ever.
_LIMIT_S = 40
Outcomes = dict[str, tuple[str, str]]  # by test: passed, skipped or failed, and why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ranks", type=int)
    parser.add_argument("--only", default="", help="tests whose name contains this")
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.backend[0], options.only, options.worker)
        return 0
    found = {name: outcomes(name, options) for name in options.backend or BACKENDS}
    for name, by_test in found.items():
        print(f"{name}: {dict(Counter(outcome for outcome, _ in by_test.values()))}")
    theirs = found.get("gloo", {})
    missed = {
        test: why
        for test, (outcome, why) in found.get("hvd_ext", {}).items()
        if outcome != "passed" and theirs.get(test, ("passed",))[0] == "passed"
    }
    for test, why in missed.items():
        print(f"  {test}: {why}")
    return int(bool(missed))


def outcomes(backend: str, options: argparse.Namespace) -> Outcomes:
    """Run all tests on one backend, in as many jobs as it takes."""
    found: Outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "outcomes"
        command = ["-m", "hvd_launch", "run", "-np", str(options.ranks), "--", sys.executable]
        command += [__file__, str(options.ranks), "--backend", backend, "--worker", str(log)]
        command += ["--only", options.only]
        while True:
            done = subprocess.run(
                [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            if not log.exists():
                raise SystemExit(f"no test began: {done.stdout.decode()}")
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            for test, outcome, why in lines:
                if found.get(test, ("",))[0] != "failed":
                    found[test] = (outcome, why)
            if done.returncode == 0:
                return found
            # A rank that has passed it may wait for one that ended in it.
            test = [name for name, outcome, _ in lines if outcome == "begun"][-1]
            if found[test][0] != "failed":
                found[test] = ("failed", f"the job ended: {done.stdout[-200:].decode()!r}")
            print(f"{backend}: {test} failed: {found[test][1][:300]}", flush=True)


def work(backend: str, only: str, log: Path) -> None:
    """Be a rank: run the tests that the log does not have."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    folder = world.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
    os.environ["BACKEND"] = backend
    known = set()
    if log.exists():
        known = {json.loads(line)[0] for line in log.read_text().splitlines()}
    world.Barrier()  # all have read it
    kind = judged(backend)
    for name in sorted(dir(kind)):
        if not name.startswith("test_") or only not in name or name in known:
            continue
        if world.rank == 0:
            note(log, name, "begun", "")
        faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
        with fresh_group(world, backend, Path(folder)):
            outcome, why = run(kind(name), name, world.rank, folder)
            note(log, name, outcome, why)
            if outcome == "failed":
                os._exit(3)  # others may wait for this one
    faulthandler.cancel_dump_traceback_later()
    MPI.Finalize()
    os._exit(0)  # threads of tests may be left


def judged(backend: str) -> type[Any]:
    """PyTorch's tests as a class that makes no processes."""
    from torch.testing._internal.common_distributed import DistTestCases
    from torch.testing._internal.distributed import distributed_test

    for names in DistTestCases.backend_feature.values():
        if "gloo" in names:
            names.add(backend)

    class Judged(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            """Nothing: processes are there."""

        def tearDown(self) -> None:
            """Nothing."""

    return Judged


@contextlib.contextmanager
def fresh_group(world: Any, backend: str, folder: Path) -> Iterator[None]:
    """A default group, and empty folders of the tests' own barrier."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_utils import set_rng_seed
    from torch.testing._internal.distributed import distributed_test

    import hvd_ext.c10d  # noqa: F401

    torch.set_num_threads(1)
    set_rng_seed()
    world.Barrier()  # all have left the last test's barrier
    if world.rank == 0:
        for name in ("barrier", "test_dir", "init_dir"):
            (folder / name).mkdir(exist_ok=True)
        for path in (folder / "barrier").iterdir():
            path.unlink()
    os.environ["TEMP_DIR"] = str(folder)  # the import sets another one on each rank
    distributed_test.Barrier.barrier_id = 0
    world.Barrier()
    dist.init_process_group(backend, init_method="mpi://")
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def run(test: Any, name: str, rank: int, folder: str) -> tuple[str, str]:
    """Run a test on this rank; returns what became of it, and why."""
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.distributed import distributed_test

    named = name.startswith(_OF_NAMED_BACKENDS)
    distributed_test.BACKEND = "gloo" if named else os.environ["BACKEND"]
    test.rank, test.file_name = rank, str(Path(folder) / f"store_{name}")
    try:
        getattr(test, name)()
    except unittest.SkipTest as reason:
        return "skipped", str(reason)
    except SystemExit as end:
        reasons = {0: "", **{skip.exit_code: word for word, skip in TEST_SKIPS.items()}}
        code = end.code if isinstance(end.code, int) else 0
        if code in reasons:
            return "skipped", reasons[code]
        return "failed", f"exit code {code}"
    except BaseException as error:
        return "failed", f"{type(error).__name__}: {str(error)[:300]}"
    return "passed", ""


def note(log: Path, *line: str) -> None:
    """Append a line, whole."""
    with log.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
