"""benchmarks.figures.terminal_picture: a command's output as an SVG, light and dark."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.figures import terminal_picture
from benchmarks.harness import BenchmarkError
from testbed.timing import machine

SVG = "{http://www.w3.org/2000/svg}"
RED = "print('\\033[31ma step:\\033[0m  30 ms & more')"


def test_a_picture_has_the_output_in_two_schemes_and_what_was_run(tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    ran = ["--ran", "a script on 2 ranks"]
    terminal_picture.main(["--output", str(picture), *ran, "--", sys.executable, "-c", RED])
    root = ElementTree.parse(picture).getroot()
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class") in ("light", "dark")]
    assert [group.get("class") for group in groups] == ["light", "dark"]
    fills = set()
    for group in groups:
        text = " ".join(" ".join(group.itertext()).split()).replace("\N{NO-BREAK SPACE}", " ")
        assert "a step:" in text
        assert "30 ms & more" in text
        assert "a script on 2 ranks" in text
        assert machine()["date"] in text
        fills |= {rect.get("fill") for rect in group.findall(f"{SVG}rect")}
    assert len(fills) == 2
    # Nothing is loaded: pages are read without a network, too.
    assert "url(http" not in picture.read_text()
    assert "prefers-color-scheme: dark" in picture.read_text()


def test_a_command_that_fails_is_not_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    with pytest.raises(BenchmarkError, match="exit code 3"):
        terminal_picture.main(["--output", str(picture), "--", sys.executable, "-c", "exit(3)"])
    assert not picture.exists()
