"""What torch.distributed builds on a backend has Gloo's bits: checkpoints, plans, pipelines ..."""

from __future__ import annotations

import os
import re
import sys

import pytest

from testbed import ranks
from tests.support.launch.launching import rank_environment, run_to_end


def company(backend: str) -> list[str]:
    path = os.pathsep.join(map(str, ranks.PACKAGES))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = [*launcher, "tests/programs/c10d/company.py", backend]
    done = run_to_end(program, rank_environment({"PYTHONPATH": path}), 240)
    assert done.returncode == 0, done.stdout
    return re.findall(r"^\w+: \['.*'\]$", done.stdout, re.MULTILINE)


@pytest.mark.long
def test_what_stands_on_a_backend_has_gloos_bits() -> None:
    want, got = company("gloo"), company("hvd_ext")
    assert len(want) == 6
    assert got == want
