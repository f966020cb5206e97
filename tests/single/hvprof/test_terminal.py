"""Pictures of the terminal: what each command prints on 80 and on 120 columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hvprof.analysis.audit import compared
from hvprof.analysis.replay.change import WhatIf
from hvprof.analysis.replay.whatif import answer
from hvprof.cli import main
from hvprof.commands import check, compare, limits, project, report
from hvprof.commands.running import hang
from hvprof.commands.shared import print_lines
from hvprof.layers.table import Layer, LayerTable
from hvprof.live.diagnosis import diagnose
from hvprof.reporters import audit as audit_words
from hvprof.reporters.terminal import layers as terminal_layers
from hvprof.reporters.terminal import whatif as terminal_whatif
from tests.single.hvprof.test_audit import audit, changed
from tests.single.hvprof.test_hang import allreduce, rank
from tests.single.hvprof.test_whatif import Job
from tests.support.hvprof.made_recordings import write_job
from tests.support.hvprof.pictures import GOLDEN, WIDTHS, check_picture

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


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_terminal_shows(
    name: str, width: int, recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")

    def draw(shown: Console) -> None:
        for module in (report, compare, check, limits, project):
            monkeypatch.setattr(module, "console", lambda: shown)
        main(COMMANDS[name])

    check_picture(name, " ".join(COMMANDS[name]), width, draw)


def draw_layers(shown: Console) -> None:
    def layer(
        name: str, kind: str, product: str, mib: int, ready_s: float, *times_s: float
    ) -> Layer:
        forward, backward = ([time_s * part for time_s in times_s] for part in (1 / 3, 2 / 3))
        return Layer(name, kind, product, mib << 20, tuple(forward), tuple(backward), ready_s)

    layers = (
        layer("conv1", "Conv2d", "12544 x 147 x 64", 1, 0.121, 0.004, 0.015, 0.058),
        layer("relu", "ReLU", "", 0, 0, 0.001, 0.004, 0.015),
        layer("layer4.2.conv3", "Conv2d", "49 x 512 x 2048", 4, 0.011, 0.002, 0.004, 0.013),
        layer("fc", "Linear", "1 x 2048 x 1000", 8, 0.002, 0.003, 0.0031, 0.0035),
    )
    table = LayerTable("resnet.model:resnet50", (3, 224, 224), (1, 4, 16), 5, 2, layers)
    terminal_layers.render(table, shown)


def draw_whatif(shown: Console) -> None:
    asked = WhatIf(bandwidth=10)
    steps = Job().run(with_ready=False)
    terminal_whatif.render(answer(steps, asked), asked, shown)


def draw_hang(shown: Console) -> None:
    late = replace(rank(3), line="train.py:118 in augment")
    standings = [*(rank(number, allreduce(4)) for number in range(3)), late]
    print_lines(hang.lines(standings, diagnose(standings, 5), 5), shown)


def draw_audit(shown: Console) -> None:
    wrong = audit(records=changed(2, gradients=(1, 2, 9)), environment={"OMP_NUM_THREADS": "4"})
    print_lines(
        audit_words.lines(["runs/a", "runs/b"], compared([{0: [audit()]}, {0: [wrong]}])), shown
    )


DRAWN: dict[str, Callable[[Console], None]] = {
    "layers --input 3,224,224 -- resnet.model:resnet50": draw_layers,
    "whatif runs/a --bandwidth 10x": draw_whatif,
    "hang runs/a": draw_hang,
    "audit runs/a runs/b": draw_audit,
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", DRAWN)
def test_what_a_terminal_shows_of_a_made_result(command: str, width: int) -> None:
    check_picture(command.partition(" ")[0], command, width, DRAWN[command])


def test_every_picture_has_a_command() -> None:
    drawn = {command.partition(" ")[0] for command in DRAWN}
    assert {path.stem.rpartition("_")[0] for path in GOLDEN.glob("*.svg")} == drawn | set(COMMANDS)
