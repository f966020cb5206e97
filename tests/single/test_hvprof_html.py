"""Pages in a real browser: no complaint, no request, every figure drawn, at any width."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvprof.analysis.layers import LAYERS_VERSION
from hvprof.cli import main
from tests.browser import Page, browser, find
from tests.made_recordings import write_job

CHROMIUM = find()
HOSTILE = (
    '</script><script>fetch("http://x.invalid/")</script><img src=//x.invalid onerror=alert(1)>'
)
# Smallest and largest letters of a drawing, as they appear on the screen, in pixels.
LETTERS = """[...document.querySelectorAll("svg text")].map(
    text => 12 * text.getScreenCTM().a)"""
# Figures whose drawing has no extent, or no mark in it.
EMPTY = """[...document.querySelectorAll("figure")].filter(figure => {
    const svg = figure.querySelector("svg");
    const box = svg && svg.getBoundingClientRect();
    const marks = svg ? svg.querySelectorAll("rect, circle, path").length : 0;
    const caption = figure.querySelector("figcaption");
    return !box || box.width < 100 || box.height < 20 || !marks || !caption.textContent.trim();
}).map(figure => figure.id)"""
# Texts that stick out of the card they are in.
OUTSIDE = """[...document.querySelectorAll("figure svg text")].filter(text => {
    const card = text.closest("figure").getBoundingClientRect();
    const box = text.getBoundingClientRect();
    return box.left < card.left || box.right > card.right;
}).map(text => text.textContent)"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH: apt install chromium")
    with browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layers") / "layers.json"
    layer = {"kind": "Conv2d", "product": "4 x 27 x 64", "gradient_bytes": 6912, "ready_s": 0.02}
    table = {
        "layers_version": LAYERS_VERSION,
        "model": HOSTILE,
        "input_shape": [3, 32, 32],
        "batches": [1, 8],
        "repeats": 3,
        "threads": 1,
        "layers": [
            {**layer, "name": "conv", "forward_s": [0.001, 0.008], "backward_s": [0.002, 0.016]},
            {**layer, "name": HOSTILE, "forward_s": [0.002, 0.003], "backward_s": [0.004, 0.005]},
        ],
    }
    path.write_text(json.dumps(table))
    return path


def check(page: Page, path: Path, figures: int) -> None:
    for width, dark in ((1200, False), (1200, True), (390, False), (390, True)):
        page.show(width, dark=dark)
        page.open(path)
        assert page.requests == [path.resolve().as_uri()]
        assert page.complaints == []
        assert page.value("document.querySelectorAll('figure').length") == figures
        assert page.value(EMPTY) == []
        assert page.value(OUTSIDE) == []
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        assert min(page.value(LETTERS)) > 8
        paper = page.value("getComputedStyle(document.body).backgroundColor")
        lightness = int(paper.split("(")[1].split(",")[0])
        assert (lightness < 60) if dark else (lightness > 200)


def test_a_report_with_everything_in_it(page: Page, layers: Path, tmp_path: Path) -> None:
    write_job(tmp_path / "run", 8, late_rank=3)
    out = tmp_path / "run.html"
    main(["report", str(tmp_path / "run"), "--html", str(out), "--layers", str(layers)])
    check(page, out, figures=13)
    if folder := os.environ.get("HVD_EXT_TEST_SCREENSHOTS"):
        for width, dark in ((1200, False), (1200, True), (390, False)):
            page.show(width, dark=dark)
            page.screenshot(
                Path(folder) / f"report-{width}-{'dark' if dark else 'light'}.png", 4000
            )


def test_a_report_of_many_ranks(page: Page, tmp_path: Path) -> None:
    write_job(tmp_path / "run", 70, steps=32)
    out = tmp_path / "run.html"
    main(["report", str(tmp_path / "run"), "--html", str(out)])
    check(page, out, figures=10)


def test_a_comparison(page: Page, tmp_path: Path) -> None:
    for side, speed in (("default", 1.0), ("better", 0.7)):
        for run in range(4):
            write_job(tmp_path / side / str(run), 2, speed=speed, seed=run)
    out = tmp_path / "comparison.html"
    sides = [str(tmp_path / "default"), str(tmp_path / "better")]
    main(["compare", *sides, "--html", str(out)])
    check(page, out, figures=2)
    assert "better is faster" in page.value("document.querySelector('.verdict').textContent")


def test_hostile_names_are_only_text(page: Page, layers: Path, tmp_path: Path) -> None:
    directory = tmp_path / "<img src=x onerror=alert(1)>"
    write_job(directory, 2, host=HOSTILE[:40], command=("sh", "-c", HOSTILE), name="<b>&\"'</b>")
    out = tmp_path / "run.html"
    main(["report", str(directory), "--html", str(out), "--layers", str(layers)])
    page.show(1200, dark=False)
    page.open(out)
    assert page.requests == [out.resolve().as_uri()]
    assert page.complaints == []
    assert page.value("document.querySelectorAll('script').length") == 1
    assert page.value("document.querySelectorAll('img, b b, figure b').length") == 0
    assert HOSTILE in page.value("document.querySelector('header pre').textContent")
    data = json.loads(page.value("document.getElementById('hvprof-data').textContent"))
    assert data["command"] == ["sh", "-c", HOSTILE]
    labels = ["--labels", HOSTILE, "plain"]
    main(["compare", str(out), str(directory), *labels, "--html", str(tmp_path / "c.html")])
    page.open(tmp_path / "c.html")
    assert page.requests == [(tmp_path / "c.html").resolve().as_uri()]
    assert page.value("document.querySelectorAll('script, img').length") == 1
