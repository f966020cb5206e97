"""What tests of `hvprof limits` ask it: files of layers, and its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvprof.cli import main
from hvprof.layers.table import LAYERS_VERSION


def layer(name: str, times_s: list[float], message_bytes: int, ready_s: float) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "Linear",
        "product": "",
        "gradient_bytes": message_bytes,
        "forward_s": [time_s / 3 for time_s in times_s],
        "backward_s": [time_s * 2 / 3 for time_s in times_s],
        "ready_s": ready_s,
    }


def write_layers(path: Path, batches: list[int], layers: list[dict[str, Any]]) -> Path:
    table = {"layers_version": LAYERS_VERSION, "model": "m:m", "input_shape": [3, 8, 8]}
    path.write_text(
        json.dumps({**table, "batches": batches, "repeats": 1, "threads": 1, "layers": layers})
    )
    return path


def limits(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["limits", *map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found
