"""Losses of partitioned predictions: the loss of the whole, the same on every rank.

A mean is over all cells, not a mean of the shards' means. Targets are split like the predictions,
or whole on every rank, which then uses its part of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.dtypes import accumulate_dtype
from hvd_ext.spatial.exchange.replicated import sum_over_space, to_replicated
from hvd_ext.spatial.layers.operands import first, over, shard_of
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.unsupported import UnsupportedError, name_of

CELLWISE = (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.poisson_nll_loss,
    F.soft_margin_loss,
)


def _old_style(function: Any, options: dict[str, Any]) -> None:
    if options.pop("size_average", None) is not None or options.pop("reduce", None) is not None:
        raise UnsupportedError(f"{name_of(function)} with size_average or reduce: use reduction")


def _total(x: SpatialTensor, cells: Tensor) -> Tensor:
    wide = accumulate_dtype(cells.dtype)
    return sum_over_space(to_replicated(cells, x.grid.space).sum(dtype=wide), x.grid.space)


def _check(function: Any, reduction: str) -> None:
    if reduction not in ("none", "sum", "mean"):
        raise UnsupportedError(
            f"{name_of(function)} with reduction={reduction!r}: none, sum or mean"
        )


def _cellwise(function: Any) -> Any:
    def handler(
        input: Any, target: Any, *args: Any, reduction: str = "mean", **options: Any
    ) -> SpatialTensor | Tensor:
        _old_style(function, options)
        _check(function, reduction)
        x = first((input, target))
        # The only loss of torch whose mean is weighted by the elements' weights.
        weight = options.get("weight") if function is F.mse_loss else None
        for other in (target, weight):
            if other is not None and tuple(input.shape) != tuple(other.shape):
                raise UnsupportedError(
                    f"{name_of(function)} of shapes {tuple(input.shape)} and "
                    f"{tuple(other.shape)}: they must be the same"
                )
        rest = [shard_of(function, value, x) for value in args]
        named = {name: shard_of(function, value, x) for name, value in options.items()}
        cells = function(
            shard_of(function, input, x),
            shard_of(function, target, x),
            *rest,
            reduction="none",
            **named,
        )
        if reduction == "none":
            return x.like(cells)
        total = _total(x, cells)
        if reduction == "mean":
            counted = math.prod(x.shape) if weight is None else _total(x, named["weight"])
            total = total / counted
        return total.to(cells.dtype)

    return handler


for _function in CELLWISE:
    implements(_function, any_operand=True)(_cellwise(_function))


@implements(F.cross_entropy, any_operand=True)
def cross_entropy(
    input: SpatialTensor,
    target: SpatialTensor | Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> SpatialTensor | Tensor:
    """Cross entropy of (N, C, *extents) against labels (N, *extents), or probabilities."""
    _old_style(F.cross_entropy, {"size_average": size_average, "reduce": reduce})
    return _classes(
        input,
        target,
        weight,
        ignore_index,
        reduction,
        lambda scores, labels: F.cross_entropy(
            scores,
            labels,
            weight,
            ignore_index=ignore_index,
            reduction="none",
            label_smoothing=label_smoothing,
        ),
    )


@implements(F.nll_loss, any_operand=True)
def nll_loss(
    input: SpatialTensor,
    target: SpatialTensor | Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
) -> SpatialTensor | Tensor:
    """Negative log likelihood of (N, C, *extents) against labels (N, *extents)."""
    _old_style(F.nll_loss, {"size_average": size_average, "reduce": reduce})
    return _classes(
        input,
        target,
        weight,
        ignore_index,
        reduction,
        lambda scores, labels: F.nll_loss(
            scores, labels, weight, ignore_index=ignore_index, reduction="none"
        ),
    )


def _classes(
    input: SpatialTensor,
    target: SpatialTensor | Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    per_cell: Any,
) -> SpatialTensor | Tensor:
    _check(F.cross_entropy, reduction)
    if not isinstance(input, SpatialTensor):
        raise UnsupportedError(
            "cross entropy of whole predictions against split labels: split both"
        )
    input = over(input, input.ndim - 2, "cross entropy")
    labels = shard_of(F.cross_entropy, target, input)
    probabilities = labels.is_floating_point()
    expected = input.shape if probabilities else (input.shape[0], *input.extents)
    if tuple(target.shape) != tuple(expected):
        raise UnsupportedError(
            f"cross entropy of shape {tuple(input.shape)} against {tuple(target.shape)}: "
            f"expected targets of shape {tuple(expected)}"
        )
    cells = per_cell(input.local, labels)
    if reduction == "none":
        return input.like(cells)
    total = _total(input, cells)
    if reduction == "sum":
        return total.to(cells.dtype)
    if probabilities:
        return (total / (input.shape[0] * math.prod(input.extents))).to(cells.dtype)
    # Each label counts with its class's weight, and an ignored one does not count.
    with torch.no_grad():
        kept = labels != ignore_index
        weights = kept.to(total.dtype)
        if weight is not None:
            weights = weight.to(total.dtype)[torch.where(kept, labels, 0)] * kept
        counted = sum_over_space(weights.sum(), input.grid.space)
    return (total / counted).to(cells.dtype)
