"""`make matrix`: it resumes, says why a combination is skipped, and its parts are there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures.support import support

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "toolchain"))
import matrix  # noqa: E402  (a script, not a package)

CELLS = [matrix.Cell(python, "2.13.0", "no") for python in ("3.10", "3.11", "3.12")]
CELLS.append(matrix.Cell("3.11", "1.0.0", "no"))


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[matrix.Cell]:
    """The cells whose steps were run: Python 3.12 is missing, 3.11 fails the first time."""
    cells: list[matrix.Cell] = []

    def test(cell: matrix.Cell, python: str, keep: bool) -> dict[str, Any]:
        cells.append(cell)
        fails = cell.python == "3.11" and cells.count(cell) == 1
        return {"status": "failed", "why": "core: x"} if fails else {"status": "passed"}

    monkeypatch.setattr(matrix, "RESULTS", tmp_path / "support_matrix.json")
    monkeypatch.setattr(matrix, "test", test)
    monkeypatch.setattr(matrix, "interpreter", lambda v: None if v == "3.12" else f"python{v}")
    monkeypatch.setattr(matrix, "available", lambda python, pip: ["2.15.0", "2.13.0"])
    return cells


def test_a_second_call_runs_what_has_not_passed(tested: list[matrix.Cell]) -> None:
    first = matrix.run(CELLS, again=False, keep=False, pip=())
    assert [first[cell.key]["status"] for cell in CELLS] == ["passed", "failed", *["skipped"] * 2]
    assert "no Python 3.12" in first[CELLS[2].key]["why"]
    assert "torch 1.0.0 has no wheel for Python 3.11" in first[CELLS[3].key]["why"]
    second = matrix.run(CELLS, again=False, keep=False, pip=())
    assert tested == [CELLS[0], CELLS[1], CELLS[1]]
    assert [second[cell.key]["status"] for cell in CELLS[:2]] == ["passed"] * 2
    matrix.run(CELLS[:1], again=True, keep=False, pip=())
    assert tested[3:] == CELLS[:1]


def test_the_page_shows_each_combination_with_its_date(tested: list[matrix.Cell]) -> None:
    matrix.run(CELLS, again=False, keep=False, pip=())
    results = json.loads(matrix.RESULTS.read_text())
    assert [cell["torch"] for cell in results["cells"]] == ["2.13.0", "1.0.0", "2.13.0", "2.13.0"]
    page = support({"support_matrix": results})
    assert re.search(r"^\| 3\.10 \| no \| not run \| passed, \d{4}-\d\d-\d\d \|$", page, re.M)
    assert "- Python 3.12, PyTorch 2.13.0: `no Python 3.12" in page


def test_a_checkout_of_horovod_is_named_by_its_folder(tested: list[matrix.Cell]) -> None:
    checkout = matrix.Cell("3.10", "2.13.0", "/somewhere/horovod-master")
    matrix.run([checkout], again=False, keep=False, pip=())
    (written,) = json.loads(matrix.RESULTS.read_text())["cells"]
    assert (written["horovod"], written["status"]) == ("horovod-master", "passed")
    assert checkout.folder.name == "python-3.10_torch-2.13.0_horovod-master"
    assert "/somewhere/horovod-master" in checkout.steps("python3")["environment"][0]
    matrix.run([checkout], again=False, keep=False, pip=())
    assert tested == [checkout]


def test_a_step_that_fails_is_named_and_the_environment_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(matrix, "FOLDER", tmp_path)
    commands = {"environment": "echo made", "digits": "echo x; echo no training >&2; exit 3"}
    steps = {name: (("sh", "-c", command), 60) for name, command in commands.items()}
    monkeypatch.setattr(matrix.Cell, "steps", lambda cell, python: steps | {"core": None})
    (CELLS[0].folder / "bin").mkdir(parents=True)
    result = matrix.test(CELLS[0], "python3", keep=False)
    assert (result["status"], result["why"]) == ("failed", "digits: no training")
    assert list(result["times_s"]) == ["environment", "digits"]
    assert not CELLS[0].folder.exists()


def test_a_step_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    command = ("sh", "-c", "sleep 60 & wait")
    assert matrix.attempt(command, 1, "/bin", tmp_path / "log") == "not done after 1 s"


def test_the_reason_is_the_error_and_not_what_a_launcher_says_after_it(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo '[1] ImportError: no x'; echo; echo ' Exit code: 1'; exit 1")
    assert matrix.attempt(command, 60, "/bin", tmp_path / "log") == "[1] ImportError: no x"


def test_the_files_that_it_runs_are_there() -> None:
    assert [
        name
        for name in (*matrix.IMPORTS, *matrix.CORE, *matrix.WITHOUT_HOROVOD)
        if not (ROOT / name).exists()
    ] == []


def test_the_workflow_calls_the_makefile_alone() -> None:
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    commands = re.findall(r"^ +-? *run: (.+)$", workflow, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        assert re.fullmatch(r"make [^;&|]+", command)
        assert command.split()[1] in targets
    pythons = re.search(r"python: (\[.+\])", workflow)
    assert json.loads(pythons[1]) == list(matrix.PYTHONS)
