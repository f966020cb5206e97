"""Sums and means over all split dims, or over none of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.dtypes import accumulate_dtype
from hvd_ext.spatial.exchange.replicated import sum_over_space, to_replicated
from hvd_ext.spatial.layers.operands import reduced
from hvd_ext.spatial.layers.reducing.over_space import covers, dims_of
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.unsupported import UnsupportedError


def _reduction(function: Any, mean: bool) -> Any:
    def handler(
        x: SpatialTensor,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: torch.dtype | None = None,
    ) -> SpatialTensor | Tensor:
        over = dims_of(x, dim)
        made = dtype or x.dtype
        if mean and not (made.is_floating_point or made.is_complex):
            raise UnsupportedError(f"mean of {x!r} in {made}: ask for a floating-point dtype")
        if not covers(x, over):
            if any(dim in x.split_dims for dim in over):
                raise UnsupportedError(
                    f"{'mean' if mean else 'sum'} over dims {list(over)} of {x!r}: over all split "
                    "dims or none of them"
                )
            return reduced(x, function(x.local, over, keepdim, dtype=dtype), over)
        local = to_replicated(x.local, x.grid.space)
        if not mean:
            return sum_over_space(local.sum(over, keepdim, dtype=dtype), x.grid.space)
        wide = accumulate_dtype(made)
        total = sum_over_space(local.sum(over, keepdim, dtype=wide), x.grid.space)
        return (total / math.prod(x.shape[place] for place in over)).to(made)

    return handler


implements(torch.sum, Tensor.sum)(_reduction(torch.sum, mean=False))
implements(torch.mean, Tensor.mean)(_reduction(torch.mean, mean=True))
