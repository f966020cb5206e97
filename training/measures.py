"""The quality of predictions: sums over samples, which ranks add, and figures from these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Measure:
    """Figures of predictions, exact however samples are shared out or split.

    Attributes:
        figures: their names.
        terms: how many sums there are.
        sums: sums over a prediction and its target, ordinary or split tensors; (sums,) in float64,
            the same on all ranks that share the sample.
        values: the figures from such sums, added up over samples; multiples of the sums give the
            same figures.
    """

    figures: tuple[str, ...]
    terms: int
    sums: Callable[[Any, Any], Tensor]
    values: Callable[[Sequence[float]], Sequence[float]]


def _error_sums(prediction: Any, target: Any) -> Tensor:
    errors = (prediction - target).abs().double().cpu()
    return torch.stack([errors.sum(), torch.tensor(float(errors.numel()), dtype=torch.float64)])


def _cell_sums(prediction: Any, target: Any) -> Tensor:
    """Numbers of cells that are found, marked, both, and of all cells."""
    found, marked = (prediction > 0.5).double(), (target > 0.5).double()
    counts = [found.sum(), marked.sum(), (found * marked).sum()]
    return torch.stack([*(count.cpu() for count in counts), torch.tensor(float(target.numel()))])


def _cell_figures(sums: Sequence[float]) -> list[float]:
    found, marked, both, cells = sums
    either = found + marked - both
    return [_ratio(cells - either + both, cells)] + [
        _ratio(both, out_of) for out_of in (found, marked, either)
    ]


def _ratio(part: float, whole: float) -> float:
    """0 of nothing, as in scikit-learn."""
    return part / whole if whole else 0.0


# MLPerf HPC's figure of CosmoFlow: over all parameters, each scaled to -1..1.
ABSOLUTE_ERROR = Measure(("mae",), 2, _error_sums, lambda sums: [_ratio(*sums)])
# Figures of marked cells; a cell is found if its prediction is above 1/2.
CELLS = Measure(("accuracy", "precision", "recall", "iou"), 4, _cell_sums, _cell_figures)
