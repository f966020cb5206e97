"""Pictures of the terminal: what each command prints on 80 and on 120 columns."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from hvprof.cli import main
from hvprof.commands import check, compare, limits, project, report
from tests.support.hvprof.made_recordings import write_job

GOLDEN = Path(__file__).parent / "golden"
WRITE = "HVD_EXT_TEST_WRITE_GOLDEN"
SPEEDS = "ranks,throughput\n1,100\n2,190\n4,350\n8,610\n"
COMMANDS = {
    "report": ["report", "default/1"],
    "compare": ["compare", "default", "better"],
    "compare_one": ["compare", "default/1", "better/1"],
    "check": ["check", "default", "better", "--max-regression", "5%"],
    "limits": ["limits", "default/1", "--batch", "256"],
    "project": ["project", "--csv", "speeds.csv", "--to", "64"],
}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runs")
    for side, speed in (("default", 1.0), ("better", 0.7)):
        for run in (1, 2):
            write_job(folder / side / str(run), 2, speed=speed, seed=run)
    (folder / "speeds.csv").write_text(SPEEDS)
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_terminal_shows(
    name: str, width: int, recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    shown = Console(file=io.StringIO(), width=width, record=True, force_terminal=True)
    for module in (report, compare, check, limits, project):
        monkeypatch.setattr(module, "console", lambda: shown)
    main(COMMANDS[name])
    text = shown.export_text(clear=False)
    # A command to be copied is one line, and only those may be longer.
    long = [line for line in text.splitlines() if len(line.rstrip()) > width]
    assert [line for line in long if not line.startswith("   $ ")] == []
    picture = re.sub(r"terminal-\d+", "terminal", shown.export_svg(title=" ".join(COMMANDS[name])))
    golden = GOLDEN / f"{name}_{width}.svg"
    if os.environ.get(WRITE):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(picture)
    assert picture == golden.read_text(), f"{golden} differs: view it, then set {WRITE}=1"


def test_every_picture_has_a_command() -> None:
    assert {path.stem.rpartition("_")[0] for path in GOLDEN.glob("*.svg")} == set(COMMANDS)
