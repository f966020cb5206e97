"""Figures of pages come from docs/benchmarks/*.json, and no other speed stands in the prose."""

from __future__ import annotations

import re

import pytest

from benchmarks.figures.markdown import number
from benchmarks.figures.pages import blocks, fill, prose
from benchmarks.figures.tables import BLOCKS, memory
from benchmarks.figures.write import PAGES, RESULTS, ROOT, load, made

RESULT = load(RESULTS)
MADE = made(RESULT)
ON_PAGES = [(page, name, content) for page in PAGES for name, content in blocks(page.read_text())]

UNIT = r"(?:x(?! \d)|times|ns|us|ms|s|images/s|[KMG]i?B(?:/s)?|Gbit/s|dB|%)"
FIGURE = re.compile(
    rf"(?<![\w.])\d[\d.,]*(?:\s| to [\d.,]+ )?{UNIT}(?![\w-])"
    # A cell of a table that is a number.
    r"|(?<=\| )[\d.,]+(?= \||  ?\()"
)
# Constants: they describe a setting or the size of a thing, not a result.
CONSTANTS = {
    "1.5 GB": "disk space of make env",
    "95 %": "confidence",
    **dict.fromkeys(("3.11", "2.13", "0.28.1"), "versions that were tested"),
}


@pytest.mark.parametrize(("page", "name", "content"), ON_PAGES, ids=[n for _, n, _ in ON_PAGES])
def test_a_block_has_the_numbers_of_its_files(page, name: str, content: str) -> None:
    missing = [need for need in BLOCKS[name].needs if need not in RESULT]
    if missing:
        pytest.skip(f"no docs/benchmarks/{missing[0]}.json: run make bench")
    assert content == MADE[name].strip("\n"), f"{page.name}: run make figures"


def test_every_block_is_on_a_page() -> None:
    assert sorted(name for _, name, _ in ON_PAGES) == sorted(BLOCKS)


def test_every_result_is_on_a_page() -> None:
    assert RESULT.keys() == {need for block in BLOCKS.values() for need in block.needs}


def test_a_ratio_beside_numbers_is_theirs() -> None:
    """Ratios of rounds or pairs differ from it, and their columns say what they are."""
    pairs = []
    for name in ("gradient_exchange_np2", "gradient_exchange_np4"):
        times = RESULT[name]["time_ms"]
        pairs.append((RESULT[name]["ratio_vs_horovod"], times["horovod"], times["hvd_ext"]))
    for row in (*RESULT["peers"]["sizes"], *RESULT["collectives"]["cases"]):
        if (best := row.get("best_peer")) is not None:
            times = row["time_us"]
            pairs.append((row["ratio_vs_best_peer"], times[best], times["hvd_ext"]))
    rows = RESULT["compression"]["formats"]
    for row in (*rows, *RESULT["compression"]["peers"]):
        pairs.append((row["ratio_vs_none"], rows[0]["time_ms"], row["time_ms"]))
    for ratio, reference, found in pairs:
        assert ratio == pytest.approx(reference["median"] / found["median"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_figure_stands_in_the_prose(page) -> None:
    found = {match[0] for match in FIGURE.finditer(prose(page.read_text()))}
    assert found - CONSTANTS.keys() == set(), "put it into docs/benchmarks/*.json and a block"


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("took 30 ms instead of 42", ["30 ms"]),
        ("is 1.9 times as fast, 1.6x, 1.0 to 1.3 x", ["1.9 times", "1.6x", "1.0 to 1.3 x"]),
        ("at 6.82 GB/s, 12 % of 2 Gbit/s", ["6.82 GB/s", "12 %", "2 Gbit/s"]),
        ("on 2 ranks, 64-pixel images, Open MPI 4.1.8, 2026-11-23, 1024 x 1024", []),
        ("| int8 | 8.88 | 340 (330 to 350) |", ["8.88", "340"]),
    ],
)
def test_figures_are_recognized(text: str, figures: list[str]) -> None:
    assert FIGURE.findall(text) == figures


def test_readme_says_where_tuned_horovod_is_as_fast() -> None:
    cases = [
        {
            "model": model,
            **{
                f"ratio_vs_{peer}_of_rounds": {
                    "median": value,
                    "low": value - 0.1,
                    "high": value + 0.1,
                }
                for peer, value in (("horovod", 2.0), ("horovod_by_hand", by_hand))
            },
        }
        for model, by_hand in (("resnet50", 1.2), ("edsr_demo", 1.01), ("small_2000", 3.0))
    ]
    machine = {"cpu": "EPYC", "cores": 2, "date": "2026-11-24"}
    result = {"size": 2, "cases": cases, "machine": machine, "command": "python -m x"}
    text = BLOCKS["performance"].make({"training_step": result})
    assert "faster than tuned Horovod on ResNet-50, 64 pixels, and about as fast as" in text
    assert "| EDSR, 4 blocks of 32 | 2.00 (1.90 to 2.10) | 1.01 (0.91 to 1.11) |" in text
    assert "EPYC, 2 cores, 2026-11-24: `make bench`" in text
    assert "2,000" not in text


def test_only_the_named_block_is_replaced() -> None:
    page = "a\n<!-- figures: one -->\n\nold\n\n<!-- /figures -->\nb `2 ms`\n"
    assert fill(page, {"two": "x"}) == page
    filled = fill(page, {"one": "| new |"})
    assert filled == "a\n<!-- figures: one -->\n\n| new |\n\n<!-- /figures -->\nb `2 ms`\n"
    assert list(blocks(filled)) == [("one", "| new |")]
    assert prose(filled).split() == ["a", "b"]


def test_memory_of_ranks_is_shown_as_the_result_counts_it() -> None:
    arm = {"peak_memory_bytes": 701e6, "optimizer_state_bytes": 102e6}
    result = {
        "cases": [{"model": "resnet50", "arms": {"hvd_ext": arm}}],
        "machine": {"cpu": "EPYC", "cores": 2, "date": "2026-11-24"},
        "command": "python -m x",
    }
    assert "701 (102)" in (text := memory({"training_step": result}))
    assert "(VmHWM)" in text
    arm["memory_bytes"] = 534e6
    assert "534 (102)" in (text := memory({"training_step": result}))
    assert "(PSS)" in text


def test_numbers_have_three_digits() -> None:
    assert [number(n) for n in (0, 0.12345, 1.2345, 12.345, 1234.5)] == [
        "0",
        "0.123",
        "1.23",
        "12.3",
        "1,234",
    ]
