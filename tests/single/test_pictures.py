"""Pictures of docs: each has a page and a command, is legible, and says what hvprof says today."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from testbed.ranks import ROOT

PICTURES = sorted((ROOT / "docs" / "images").iterdir())
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
# Phrases of hvprof that stand in a picture.
SAID = {
    "hvprof-compare.svg": ("a rank's time", "interval", "No evidence that", "Intervals hold with"),
    "hvprof-hang.svg": ("has not come", "sleeps or waits outside of MPI", "each rank:"),
    "hvprof-report.png": ("Verdict", "Settings to try next", "Where a step's time goes"),
    "hvprof-timeline.svg": ("Timeline:", "operators of CPUs, as no GPU was used"),
    "hvprof-watch.svg": ("since the last reading", "slowest rank", "calls/s", "of the time"),
}


def words(picture: Path) -> str:
    """The light part's words in an SVG, or the headings that are kept in a PNG."""
    if picture.suffix == ".png":
        return str(Image.open(picture).info.get("Description", ""))
    root = ElementTree.parse(picture).getroot()
    texts = root.iterfind(".//{*}g[@class='light']//{*}text")
    said = ["".join(text.itertext()) for text in texts] or list(root.itertext())
    return plain("\n".join(said))


def plain(text: str) -> str:
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


def sources() -> str:
    """All of hvprof, without the quotes between the lines of a string."""
    folder = ROOT / "profiling" / "hvprof"
    files = [path for path in folder.rglob("*") if path.suffix in (".py", ".j2")]
    return plain(re.sub(r'"\n\s*f?"', "", "\n".join(path.read_text() for path in files)))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_has_a_page_and_a_command(picture: Path) -> None:
    assert any(f"images/{picture.name})" in page.read_text() for page in PAGES)
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert f"`{picture.name}`" in ", ".join(table).split(", ")


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_legible_on_light_and_dark(picture: Path) -> None:
    """A PNG is opaque; an SVG has two schemes, or its own white paper."""
    if picture.suffix == ".png":
        assert Image.open(picture).convert("RGBA").getextrema()[3] == (255, 255)
    else:
        text = picture.read_text()
        assert "prefers-color-scheme: dark" in text or "rect.back{fill:#fff}" in text


@pytest.mark.parametrize("name", SAID)
def test_a_picture_of_hvprof_says_what_hvprof_says(name: str) -> None:
    said, program = words(ROOT / "docs" / "images" / name), sources()
    for phrase in SAID[name]:
        assert phrase in program, "hvprof has other words: draw the picture again"
        assert phrase in said


def test_headings_of_the_reports_picture_are_in_the_report() -> None:
    program = sources()
    headings = words(ROOT / "docs" / "images" / "hvprof-report.png").splitlines()
    assert len(headings) > 4
    # Where a heading has a number, its first word is the report's.
    assert [one for one in headings if re.split(r":|\d", one)[0].strip() not in program] == []
