"""Signals are handled while a rank waits for a late one, and the wait goes on after that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Launch

PROGRAM = Path(__file__).parents[2] / "programs" / "allreduce" / "waits_in_a_plan.py"


@pytest.mark.parametrize("how", ["in_place", "short", "long"])
def test_a_handler_runs_while_a_late_rank_is_waited_for(
    launch: Launch, tmp_path: Path, how: str
) -> None:
    done = launch(2, [PROGRAM, how, tmp_path / "handled"])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("handled, and reduced") == 2, done.stdout
