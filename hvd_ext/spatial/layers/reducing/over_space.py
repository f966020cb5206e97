"""Reductions over all split dims: the result is whole, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.dtypes import accumulate_dtype
from hvd_ext.spatial.exchange.replicated import by_rank, sum_over_space, to_replicated
from hvd_ext.spatial.layers.reducing.extremes import extreme, extreme_at
from hvd_ext.spatial.tensor import SpatialTensor, global_shape
from hvd_ext.spatial.unsupported import UnsupportedError

Dims = int | Sequence[int] | None


def dims_of(x: SpatialTensor, dim: Dims) -> tuple[int, ...]:
    """Return the given dims, counted from the front, ascending; all dims if none are given.

    Raises:
        UnsupportedError: the tensor has no such dim, or one is named twice.
    """
    asked = (dim,) if isinstance(dim, int) else tuple(dim or range(x.ndim))
    # Used for every reduction, because torch's others take seconds to load on the meta device.
    global_shape(torch.sum, (tuple(x.shape),), (asked, False))
    return tuple(sorted(place % x.ndim for place in asked))


def covers(x: SpatialTensor, dims: Sequence[int]) -> bool:
    """Whether `dims` include all split ones, or all of the space if only one rank has it."""
    first = len(x.lead)
    return set(x.split_dims or range(first, first + len(x.extents))) <= set(dims)


def _amax(x: SpatialTensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return extreme(x, dims_of(x, dim), keepdim, largest=True)


def _amin(x: SpatialTensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return extreme(x, dims_of(x, dim), keepdim, largest=False)


def _max(x: SpatialTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return _amax(x)
    return torch.return_types.max(extreme_at(x, dims_of(x, dim), keepdim, largest=True))


def _min(x: SpatialTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return _amin(x)
    return torch.return_types.min(extreme_at(x, dims_of(x, dim), keepdim, largest=False))


def _argmax(x: SpatialTensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return extreme_at(x, dims_of(x, dim), keepdim, largest=True)[1]


def _argmin(x: SpatialTensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return extreme_at(x, dims_of(x, dim), keepdim, largest=False)[1]


def _any(x: SpatialTensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return extreme(x.like(x.local.detach() != 0), dims_of(x, dim), keepdim, largest=True)


def _all(x: SpatialTensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return extreme(x.like(x.local.detach() != 0), dims_of(x, dim), keepdim, largest=False)


def _var(
    x: SpatialTensor,
    dim: Dims = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Compute the variance after subtracting the mean: two sums, and no cancellation."""
    if isinstance(dim, bool):
        unbiased = dim
        dim = None
    if not x.dtype.is_floating_point:
        raise UnsupportedError(f"the variance of {x!r} in {x.dtype}: use a floating-point dtype")
    correction = float(unbiased) if correction is None else correction
    dims, space = dims_of(x, dim), x.grid.space
    count = math.prod(x.shape[place] for place in dims)
    wide = x.local.to(accumulate_dtype(x.dtype))
    centred = wide - sum_over_space(wide.sum(dims, keepdim=True), space) / count
    squares = to_replicated(centred.square().sum(dims, keepdim=keepdim), space)
    return (sum_over_space(squares, space) / max(0.0, count - correction)).to(x.dtype)


def _std(x: SpatialTensor, *args: Any, **options: Any) -> Tensor:
    return _var(x, *args, **options).sqrt()


def _with_mean(spread: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def both(x: SpatialTensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        dim = options.get("dim", args[0] if args and not isinstance(args[0], bool) else None)
        keepdim = options.get("keepdim", args[2] if len(args) > 2 else False)
        return spread(x, *args, **options), x.mean(dims_of(x, dim), keepdim)

    return both


def _norm(
    x: SpatialTensor,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the norm of the ranks' norms."""
    order = 2.0 if p in ("fro", None) else p
    if isinstance(order, str) or order <= 0:
        raise UnsupportedError(f"the norm of order {p!r} of {x!r}: use an order above 0")
    dims, space = dims_of(x, dim), x.grid.space
    if order == math.inf:
        return extreme(x.like(x.local.abs().to(dtype or x.dtype)), dims, keepdim, largest=True)
    wide = x.local.to(accumulate_dtype(dtype or x.dtype))
    own = to_replicated(torch.linalg.vector_norm(wide, order, dims, keepdim), space)
    return torch.linalg.vector_norm(by_rank(own, space), order, 0).to(dtype or x.dtype)


def _vector_norm(x: SpatialTensor, ord: float = 2.0, *args: Any, **options: Any) -> Tensor:
    return _norm(x, ord, *args, **options)


# Names in torch, torch.linalg and Tensor.
OVER_SPACE: dict[str, Callable[..., Any]] = {
    "amax": _amax,
    "amin": _amin,
    "max": _max,
    "min": _min,
    "argmax": _argmax,
    "argmin": _argmin,
    "any": _any,
    "all": _all,
    "var": _var,
    "std": _std,
    "var_mean": _with_mean(_var),
    "std_mean": _with_mean(_std),
    "norm": _norm,
    "vector_norm": _vector_norm,
}
