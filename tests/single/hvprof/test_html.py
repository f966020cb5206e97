"""Pages in a real browser: no complaint, no request, every figure drawn, at any width."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import hvprof
from hvd_ext.audit import Header, Record, Writer
from hvprof.cli import main
from hvprof.format.writer import write_rank
from hvprof.layers.table import LAYERS_VERSION
from testbed.browser import Page, browser, find
from tests.support.hvprof.made_recordings import write_job

CHROMIUM = find()
HOSTILE = (
    '</script><script>fetch("http://x.invalid/")</script><img src=//x.invalid onerror=alert(1)>'
)
# Heights of a drawing's letters, as they appear on the screen, in pixels.
LETTERS = """[...document.querySelectorAll("svg text")].map(
    text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"""
# Colours of all text and of what is behind it: [text, letter colour, background, shade on it].
# A number in a heat map stands on the shade before it.
PAIRS = """(() => {
    const pairs = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || element.closest("script, title")) continue;
        const style = getComputedStyle(element), svg = element.closest("svg");
        let behind = element;
        while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)")
            behind = behind.parentElement;
        const before = element.previousElementSibling;
        const number = svg && before && !element.matches(".muted");
        const shade = number && before.getAttribute("fill-opacity");
        pairs.push([
            walker.currentNode.textContent, svg ? style.fill : style.color,
            getComputedStyle(behind).backgroundColor,
            shade ? [getComputedStyle(before).fill, shade] : null,
        ]);
    }
    return pairs;
})()"""
# Colours of the kinds that each figure's legend names.
KINDS = """[...document.querySelectorAll("figure")].map(figure =>
    [...figure.querySelectorAll("rect[rx]")].map(mark => getComputedStyle(mark).fill))"""
MARKS = """[...document.querySelectorAll("svg rect:not([fill-opacity]), svg circle")].map(mark => [
    mark.textContent, getComputedStyle(mark).fill,
    getComputedStyle(mark.closest("figure")).backgroundColor, null])"""
# Rows of figures or tiles that end before the page does, or whose cards differ in height.
HOLES = """[".figures > *", ".tiles > *"].flatMap(cards => {
    const rows = {};
    for (const card of document.querySelectorAll(cards)) {
        const box = card.getBoundingClientRect();
        (rows[box.top] ||= []).push([box.right, box.bottom, card.textContent]);
    }
    const right = document.querySelector(".verdict").getBoundingClientRect().right;
    return Object.values(rows).filter(row =>
        Math.abs(row.at(-1)[0] - right) > 1 || row.some(card => Math.abs(card[1] - row[0][1]) > 1));
})"""
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


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 70 ranks."""
    folder = tmp_path_factory.mktemp("many")
    write_job(folder / "run", 70, steps=32)
    main(["report", str(folder / "run"), "--html", str(folder / "run.html")])
    return folder / "run.html"


def luminance(color: tuple[float, ...]) -> float:
    """Of an sRGB colour, as WCAG 2 defines it."""
    parts = [value / 255 for value in color]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(front: str, behind: str, shade: list[str] | None) -> float:
    """Of two of the browser's colours, the second with a shade on it."""
    first, second = colors(front), colors(behind)
    if shade:
        alpha, over = float(shade[1]), colors(shade[0])
        second = tuple(alpha * a + (1 - alpha) * b for a, b in zip(over, second, strict=True))
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def colors(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.partition("(")[2].rstrip(")").split(",")[:3])


def faint(page: Page, pairs: str, least: float) -> list[tuple[str, float]]:
    found = [(text, contrast(*rest)) for text, *rest in page.value(pairs)]
    assert found
    return [(text, ratio) for text, ratio in found if ratio < least]


def check(page: Page, path: Path, figures: int) -> None:
    for width, dark in ((1280, False), (1280, True), (400, False), (400, True), (1000, False)):
        page.show(width, dark=dark)
        page.open(path)
        assert page.requests == [path.resolve().as_uri()]
        assert page.complaints == []
        assert page.value("document.querySelectorAll('figure').length") == figures
        assert page.value(EMPTY) == []
        assert page.value(OUTSIDE) == []
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        assert min(page.value(LETTERS)) > 11
        assert faint(page, PAIRS, 4.5) == []
        assert faint(page, MARKS, 3) == []
        assert page.value(HOLES) == []
        for kinds in page.value(KINDS):
            assert len(set(kinds)) == len(kinds), f"a figure shows two kinds in one colour: {kinds}"
        paper = page.value("getComputedStyle(document.body).backgroundColor")
        lightness = int(paper.split("(")[1].split(",")[0])
        assert (lightness < 60) if dark else (lightness > 200)


def test_a_report_with_everything_in_it(page: Page, layers: Path, tmp_path: Path) -> None:
    write_job(tmp_path / "run", 8, late_rank=3)
    for rank in range(8):
        writer = Writer(tmp_path / "run" / "audit", optimizer=0, rank=rank)
        writer.begin(Header(rank, 8, 0, (HOSTILE,)))
        writer.add(Record(1, 1, [1], [1], [1 + (rank == 5)]))
        writer.close()
    out = tmp_path / "run.html"
    main(["report", str(tmp_path / "run"), "--html", str(out), "--layers", str(layers)])
    check(page, out, figures=13)
    if folder := os.environ.get("HVD_EXT_TEST_SCREENSHOTS"):
        for width, dark in ((1280, False), (1280, True), (400, False)):
            page.show(width, dark=dark)
            page.screenshot(
                Path(folder) / f"report-{width}-{'dark' if dark else 'light'}.png", 4000
            )


def test_wide_tables_scroll_with_a_cue_and_by_keyboard(
    page: Page, layers: Path, tmp_path: Path
) -> None:
    write_job(tmp_path / "run", 4)
    out = tmp_path / "run.html"
    main(["report", str(tmp_path / "run"), "--html", str(out), "--layers", str(layers)])
    page.show(400, dark=False)
    page.open(out)
    regions = "[...document.querySelectorAll('.scroll')]"
    wide = page.value(f"{regions}.map(one => one.scrollWidth > one.clientWidth)")
    assert wide == [True] * 4
    assert page.value(f"{regions}.every(one => one.role === 'region' && one.ariaLabel)")
    # What explains a table does not scroll away with it.
    captions = "[...document.querySelectorAll('.caption, figcaption')]"
    assert page.value(f"{captions}.every(one => one.scrollWidth <= one.clientWidth)")
    for index in range(len(wide)):
        one = f"{regions}[{index}]"
        page.value(f"{one}.scrollIntoView({{block: 'center'}}); {one}.focus()")
        assert page.value(f"document.activeElement === {one}")
        before = right_edge(page, one)
        for kind in ("rawKeyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight",
                      windowsVirtualKeyCode=39)  # fmt: skip
        moved = f"new Promise(r => {{ const t = setInterval(() => {{ if ({one}.scrollLeft > 0) {{"
        moved += " clearInterval(t); r(true); } }, 20); setTimeout(() => r(false), 5000); })"
        assert page.settled(moved)
        page.value(f"{one}.scrollTo({{left: 1e4, behavior: 'instant'}})")
        assert sum(before) < sum(right_edge(page, one)) - 60


def right_edge(page: Page, element: str) -> tuple[int, ...]:
    """The colour that most of an element's last column of pixels has, without its outline."""
    page.value(f"{element}.style.outline = 'none'")
    box = page.value(f"{element}.getBoundingClientRect().toJSON()")
    top = box["top"] + page.value("scrollY")
    clip = {"x": box["right"] - 2, "y": top, "width": 1, "height": box["height"], "scale": 1}
    shot = page.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    return max(picture.getcolors(1 << 16))[1]


def test_a_tile_is_not_spent_on_what_is_not_known(page: Page, tmp_path: Path) -> None:
    recording = hvprof.load(write_job(tmp_path / "known", 2))
    (tmp_path / "unknown").mkdir()
    for rank in recording.ranks:
        write_rank(tmp_path / "unknown", dataclasses.replace(rank, registration_cache=None))
    page.show(1280, dark=False)
    for name, tiles in (("known", 8), ("unknown", 7)):
        out = tmp_path / f"{name}.html"
        main(["report", str(tmp_path / name), "--html", str(out)])
        page.open(out)
        assert page.value("document.querySelectorAll('.tile').length") == tiles
        assert page.value(HOLES) == []


def test_a_heat_map_has_numbers(page: Page, many: Path, tmp_path: Path) -> None:
    write_job(tmp_path / "few", 8, late_rank=3)
    few = tmp_path / "few.html"
    main(["report", str(tmp_path / "few"), "--html", str(few)])
    page.show(400, dark=False)
    texts = "[...document.querySelectorAll('#figure-ranks svg text')].map(one => one.textContent)"
    for out in (few, many):
        page.open(out)
        numbers = [text for text in page.value(texts) if re.fullmatch(r"\d+\.\d+", text)]
        ranges = [text for text in page.value(texts) if re.fullmatch(r"[\d.]+ to [\d.]+ m?s", text)]
        cells = page.value("document.querySelectorAll('#figure-ranks rect').length")
        if out == few:
            assert len(numbers) >= cells - 8
            assert not ranges
        else:
            assert len(ranges) == 6


def test_benchmarks_get_a_table_by_powers_of_two(page: Page, tmp_path: Path) -> None:
    recording = hvprof.load(write_job(tmp_path / "training", 2))
    (tmp_path / "benchmark").mkdir()
    for rank in recording.ranks:
        like = next(cell for cell in rank.cells if cell.traffic == "data")
        cells = [
            dataclasses.replace(
                like, low_bytes=2**power, high_bytes=2**power, calls=100, time_s=0.1,
                message_bytes=100 * 2**power, min_s=0.0005, max_s=0.002,
            )
            for power in (10, 16, 20, 25)
        ]  # fmt: skip
        odd = dataclasses.replace(like, calls=9, low_bytes=1025, high_bytes=2047, time_s=0.01)
        write_rank(tmp_path / "benchmark", dataclasses.replace(rank, cells=(*cells, odd)))
    page.show(1280, dark=False)
    rows = """[...document.querySelectorAll("[aria-label='Messages of a power of two'] tbody tr")]
        .map(row => [...row.children].map(cell => cell.textContent))"""
    for name in ("training", "benchmark"):
        out = tmp_path / f"{name}.html"
        main(["report", str(tmp_path / name), "--html", str(out)])
        page.open(out)
        found = page.value(rows)
        if name == "training":
            assert found == []
    assert [row[0] for row in found] == ["1 KiB", "64 KiB", "1 MiB", "32 MiB"]
    assert {tuple(row[1:5]) for row in found} == {("allreduce", "2", "100", "1 ms")}
    # 2^20 bytes in 1 ms; at 2 ranks busbw is the same.
    assert found[2][-2:] == ["1.05 GB/s", "1.05 GB/s"]


def test_a_report_of_many_ranks(page: Page, many: Path) -> None:
    check(page, many, figures=10)


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
