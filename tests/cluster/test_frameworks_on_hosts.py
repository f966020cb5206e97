"""Trainings of frameworks on hosts that share no memory: the losses are those of Gloo, nearly."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from testbed import ranks

PROGRAM = "tests/programs/c10d/frameworks_on_hosts.py"
# float32 sums in another order.
TOLERANCE = 1e-4


@pytest.mark.long
@pytest.mark.timeout(1800)  # ranks import two frameworks, on two cores
@pytest.mark.parametrize(
    ("framework", "kind"),
    [
        ("accelerate", "ddp"),
        ("accelerate", "sharded"),
        ("transformers", "ddp"),
        ("lightning", "ddp"),
        ("lightning", "sharded"),
    ],
)
def test_losses_are_those_of_gloo(build: Any, launch_on: Any, framework: str, kind: str) -> None:
    pytest.importorskip(framework)
    packages = os.pathsep.join([*map(str, ranks.PACKAGES), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": packages, "HF_HUB_OFFLINE": "1"}
    losses = []
    with build(2) as hosts:
        for backend in ("gloo", "hvd_ext"):
            done = launch_on(hosts, 2, [PROGRAM, framework, kind, backend], env=env, timeout=800)
            assert done.returncode == 0, done.stdout
            found = re.search(r"^losses (.*)$", done.stdout, re.MULTILINE)
            assert found, done.stdout
            losses.append([float(loss) for loss in found[1].split()])
            assert ("hvd_ext: active" in done.stdout) == (backend == "hvd_ext"), done.stdout
    assert len(losses[0]) >= 6
    assert losses[1] == pytest.approx(losses[0], rel=TOLERANCE)
    assert losses[0][-1] < losses[0][0]  # it learns
