"""Compute time by layer and batch: the table that `hvprof layers` writes and `report` reads."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_ext.errors import UsageError
from hvprof.printable import printable

LAYERS_VERSION = 1
# A layer is skinny if a sample costs more than this multiple of its cost in the largest batch, and
# if the layer takes at least this share of the smallest batch's time.
_SKINNY, _SHARE = 2.0, 0.01
# Bytes or seconds; more is impossible for a layer, and would overflow in a sum.
_MOST = 2**50


@dataclass(frozen=True, slots=True)
class Layer:
    """One leaf of the model.

    Attributes:
        name: name in model.named_modules().
        kind: its class.
        product: rows x inner x columns of its matrix product for one sample, for convolutions and
            fully connected layers; "" otherwise.
        gradient_bytes: bytes of its parameters' gradients.
        forward_s, backward_s: median seconds, one for each batch.
        ready_s: time from the begin of backward until its gradients were ready, at the largest
            batch; 0 without parameters.
    """

    name: str
    kind: str
    product: str
    gradient_bytes: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    ready_s: float

    def time_s(self, index: int) -> float:
        """Return forward plus backward at one batch."""
        return self.forward_s[index] + self.backward_s[index]


@dataclass(frozen=True, slots=True)
class LayerTable:
    """All layers, in the order of the forward pass, at several batches of a rank."""

    model: str
    input_shape: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int
    threads: int
    layers: tuple[Layer, ...]

    @property
    def skinny(self) -> tuple[Layer, ...]:
        """Return the layers for which a sample in the smallest batch costs much more."""
        total_s = sum(layer.time_s(0) for layer in self.layers)
        last = len(self.batches) - 1
        return tuple(
            layer
            for layer in self.layers
            if layer.time_s(0) >= _SHARE * total_s
            and layer.time_s(0) / self.batches[0]
            > _SKINNY * layer.time_s(last) / self.batches[last]
        )

    def as_json(self) -> dict[str, Any]:
        """Return the table in JSON's types, with the names of the skinny layers."""
        return {
            "layers_version": LAYERS_VERSION,
            **dataclasses.asdict(self),
            "skinny": [layer.name for layer in self.skinny],
        }


def load_layers(path: Path) -> LayerTable:
    """Read the output of `hvprof layers --json`.

    Raises:
        UsageError: it is another file, or is damaged.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["layers_version"] != LAYERS_VERSION:
            raise UsageError(
                f"{path} has format {data['layers_version']!r}, this hvprof reads"
                f" {LAYERS_VERSION}: measure again"
            )
        table = LayerTable(
            model=printable(data["model"]),
            input_shape=tuple(map(int, data["input_shape"])),
            batches=tuple(map(int, data["batches"])),
            repeats=int(data["repeats"]),
            threads=int(data["threads"]),
            layers=tuple(_layer(entry, len(data["batches"])) for entry in data["layers"]),
        )
        if not table.batches or not table.layers or min(table.batches) < 1:
            raise ValueError(table.batches)
        if list(table.batches) != sorted(set(table.batches)):
            raise ValueError(table.batches)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise UsageError(f"{path} is not a table of layers: write one with hvprof layers") from None
    return table


def _layer(entry: dict[str, Any], batches: int) -> Layer:
    if not 0 <= entry["gradient_bytes"] < _MOST:
        raise ValueError(entry)
    times = [tuple(map(_seconds, entry[key])) for key in ("forward_s", "backward_s")]
    if {len(of) for of in times} != {batches}:
        raise ValueError(entry)
    return Layer(
        name=printable(entry["name"]),
        kind=printable(entry["kind"]),
        product=printable(entry["product"]),
        gradient_bytes=int(entry["gradient_bytes"]),
        forward_s=times[0],
        backward_s=times[1],
        ready_s=_seconds(entry["ready_s"]),
    )


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value < _MOST:
        raise ValueError(value)
    return float(value)
