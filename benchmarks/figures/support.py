"""The table of Python and PyTorch versions that `make matrix` tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.figures.markdown import table


def support(results: Mapping[str, Any]) -> str:
    """A row for each Python and Horovod, a column for each torch; then the reasons."""
    cells = results["support_matrix"]["cells"]
    torches = list(dict.fromkeys(cell["torch"] for cell in cells))
    torches.sort(key=lambda version: [int(part) for part in version.split(".")])
    found = {(cell["python"], cell["horovod"], cell["torch"]): cell for cell in cells}
    lines = dict.fromkeys((cell["python"], cell["horovod"]) for cell in cells)
    rows = []
    for python, horovod in lines:
        line = (found.get((python, horovod, torch)) for torch in torches)
        words = (f"{cell['status']}, {cell['date']}" if cell else "not run" for cell in line)
        rows.append((python, horovod.removeprefix("horovod=="), *words))
    columns = ("Python", "Horovod", *(f"PyTorch {torch}" for torch in torches))
    reasons = [
        f"- Python {cell['python']}, PyTorch {cell['torch']}: `{cell['why']}`"
        for cell in cells
        if cell["status"] != "passed"
    ]
    return "\n\n".join(filter(None, (table(columns, rows), "\n".join(dict.fromkeys(reasons)))))
