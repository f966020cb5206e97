"""Write the results of docs/benchmarks/*.json into README and docs, and draw their charts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.figures import chart
from benchmarks.figures.pages import blocks, fill
from benchmarks.figures.tables import BLOCKS, Results
from benchmarks.simulated_cluster.figures import draw_growth
from hvd_ext.system.files import write_text

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "benchmarks"
IMAGES = ROOT / "docs" / "images"
PAGES = (ROOT / "README.md", *sorted(RESULTS.glob("*.md")))


def main(arguments: Sequence[str]) -> int:
    """Fill the blocks whose results are there; name the others."""
    prog = "python -m benchmarks.figures.write"
    argparse.ArgumentParser(prog=prog, description=__doc__).parse_args(arguments)
    results = load(RESULTS)
    contents = made(results)
    for page in PAGES:
        text = page.read_text()
        if (filled := fill(text, contents)) != text:
            write_text(page, filled)
            print(f"wrote {page.relative_to(ROOT)}")
        for name, _ in blocks(text):
            if name not in contents:
                missing = [need for need in BLOCKS[name].needs if need not in results]
                print(f"{page.relative_to(ROOT)}: {name} stays: no {', '.join(missing)}.json")
    if "performance" in contents:
        chart.draw(results["training_step"], IMAGES / "performance.png")
    if "simulated-growth" in contents:
        draw_growth(results["simulated_growth"], IMAGES / "simulated-growth.png")
    return 0


def load(folder: Path) -> Results:
    """The results in a folder, by the name of the file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def made(results: Results) -> Mapping[str, str]:
    """The content of each block whose results are all there."""
    return {
        name: block.make(results)
        for name, block in BLOCKS.items()
        if results.keys() >= {*block.needs}
    }


if __name__ == "__main__":
    harness.run(main, "figures.write")
