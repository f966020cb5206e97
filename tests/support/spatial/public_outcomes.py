"""What becomes of each public model when it is split.

`python -m tests.support.spatial.public_outcomes` verifies all of them and prints the table of
docs/reference/models.md; parts of names behind it choose some.
"""

from __future__ import annotations

import importlib.metadata
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_ext.spatial import UnsupportedError, verify
from hvd_ext.spatial.layers import gather
from tests.support.spatial.public_models import GRIDS, MODELS, Public


@dataclass(frozen=True)
class Outcome:
    """What became of a model on all grids, training and not.

    Attributes:
        public: the model.
        whole_from: layers from which on every rank computes the whole; () if nowhere.
        refused: the refusal; "" where it is equal.
    """

    public: Public
    whole_from: tuple[str, ...] = ()
    refused: str = ""


def outcome(public: Public) -> Outcome:
    """Verify a model.

    Raises:
        AssertionError: it differs on one of the grids, and how.
    """
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    gather._say_once.cache_clear()
    gather.log.addHandler(handler)
    torch.manual_seed(0)
    model = public.build()
    try:
        for training in (True, False):
            for grid in GRIDS:
                report = verify(model.train(training), public.shape, grid)
                assert report.passed, f"{'training' if training else 'not training'}: {report}"
    except UnsupportedError as error:
        return Outcome(public, refused=str(error))
    finally:
        gather.log.removeHandler(handler)
    layers = (line.split("layer ")[1].split("'")[1] for line in lines)
    return Outcome(public, tuple(dict.fromkeys(layers)))


def table(outcomes: Sequence[Outcome]) -> str:
    """docs/reference/models.md's: a row for each package, and for each refused model."""
    rows = ["| package | equal | equal; every rank computes the whole from a layer on | refused |"]
    rows.append("|---|---|---|---|")
    for package in dict.fromkeys(found.public.package for found in outcomes):
        mine = [found for found in outcomes if found.public.package == package]
        version = importlib.metadata.version(package) if package else ""
        columns = (
            [f.public.name for f in mine if not (f.whole_from or f.refused)],
            [f"{f.public.name} ({f.whole_from[0]})" for f in mine if f.whole_from],
            [f"{f.public.name} ({f.public.refused})" for f in mine if f.refused],
        )
        cells = (", ".join(column) for column in columns)
        rows.append(
            f"| {f'{package} {version}' if package else 'from papers'} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(rows)


def main(chosen: Sequence[str]) -> None:
    """Verify models, and print the table."""
    found: list[Outcome] = []
    for public in MODELS:
        if chosen and not any(part in f"{public.package} {public.name}" for part in chosen):
            continue
        begun = time.monotonic()
        try:
            found.append(outcome(public))
            said = found[-1].refused or f"equal {', '.join(found[-1].whole_from)}"
        except Exception as error:
            # One that fails is not in the table, and the others are.
            said = f"{type(error).__name__}: {error}"
        took_s = time.monotonic() - begun
        print(f"{took_s:.1f} s {public.name}: {said}", file=sys.stderr, flush=True)
    print(table(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
