"""Runs Horovod's own tests of horovod.torch through the interface that needs no Horovod.

    git clone https://github.com/horovod/horovod
    hvd-launch run -np 2 -- python tests/programs/standalone/horovods_tests.py horovod

Further arguments are pytest's. Where Horovod is installed, its own interface is tested instead, so
that the two can be compared. Ranks meet after each test: one that fails on a rank alone would leave
the others in a collective, and every later test with them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
import unittest.mock
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

TESTS = "test/parallel/test_torch.py"


class _Meeting:
    """Has ranks meet after each test, and begin the next one with the same names."""

    def __init__(self, *, standalone: bool) -> None:
        self._world = MPI.COMM_WORLD.Dup()
        self._standalone = standalone

    def pytest_runtest_logfinish(self) -> None:
        self._world.Barrier()
        if self._standalone:
            from hvd_ext.torch.standalone import ranks

            if ranks.is_initialized():
                ranks.job().unnamed.clear()
        self._world.Barrier()


def main(checkout: Path, arguments: list[str]) -> int:
    """Run the tests; rank 0 prints what pytest does."""
    standalone = importlib.util.find_spec("horovod") is None
    if standalone:
        from hvd_ext.torch.auto import install

        install()
        _stand_in("horovod.runner.util.threads", in_thread=None)
    # Its helpers import them for tests that start processes.
    _stand_in("cloudpickle")
    _stand_in("mock", **vars(unittest.mock))
    options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(checkout)]
    options += ["--timeout", "60", *arguments, str(checkout / TESTS)]
    with Path(os.devnull).open("w") as nowhere:
        if MPI.COMM_WORLD.rank:
            sys.stdout = sys.stderr = nowhere
        return int(pytest.main(options, plugins=[_Meeting(standalone=standalone)]))


def _stand_in(name: str, **attributes: Any) -> None:
    """Have a module, and those that it is in, be there, unless they are."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        known = ".".join(parts[:count])
        if known not in sys.modules:
            sys.modules[known] = types.ModuleType(known)
    vars(sys.modules[name]).update(attributes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
