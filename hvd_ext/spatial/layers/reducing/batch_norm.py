"""Batch normalization over the whole sample: statistics of all shards, weighted by their cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from hvd_ext.spatial.dtypes import accumulate_dtype
from hvd_ext.spatial.exchange.assemble import layout
from hvd_ext.spatial.exchange.communicator import Communicator
from hvd_ext.spatial.exchange.replicated import to_partitioned
from hvd_ext.spatial.geometry.partition import coordinates_of, lengths, shard
from hvd_ext.spatial.layers.operands import over
from hvd_ext.spatial.layers.reducing.norms import normalise
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.unsupported import UnsupportedError

# fp32 sums of longer lines have fewer digits.
_LINE_CELLS = 2048


@implements(F.batch_norm)
def batch_norm(
    x: SpatialTensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> SpatialTensor:
    """Apply batch normalization over the batch and the whole space; arguments as torch's.

    Statistics are those of the samples of this rank's sample group, as they are those of one
    process's samples in data-parallel training.

    Raises:
        UnsupportedError: one value per channel has no variance to train with; or a parameter is not
            one per channel.
    """
    x = over(x, x.ndim - 2, "batch_norm")
    if training and x.shape[0] * math.prod(x.extents) == 1:
        raise UnsupportedError(
            f"batch_norm of shape {tuple(x.shape)} in training: more than 1 value per channel is "
            "needed; use a larger batch or model.eval()"
        )
    kinds = (x.dtype, accumulate_dtype(x.dtype))
    for given in (running_mean, running_var, weight, bias):
        # torch would raise this only on ranks that have cells.
        if given is not None and (given.shape != x.shape[1:2] or given.dtype not in kinds):
            raise UnsupportedError(
                f"batch_norm of shape {tuple(x.shape)} in {x.dtype} with a parameter of shape "
                f"{tuple(given.shape)} in {given.dtype}: one per channel, of the same dtype"
            )
    weight = None if weight is None else to_partitioned(weight, x.grid.space)
    bias = None if bias is None else to_partitioned(bias, x.grid.space)
    if not training:
        if running_mean is None or running_var is None:
            raise UnsupportedError(
                "batch_norm: running statistics are missing: pass them, or use training=True"
            )
        return x.like(_apply(x.local, running_mean, running_var, weight, bias, eps))
    running = (running_mean, running_var, momentum)
    return x.like(_BatchNorm.apply(_cells(x), x.grid.space, eps, running, x.local, weight, bias))


def _apply(
    local: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Run torch's kernel with given statistics."""
    return F.batch_norm(local, mean, variance, weight, bias, False, 0.0, eps)


class _BatchNorm(Function):
    """Keeps for backward only the input and the statistics, nothing else of the input's size."""

    @staticmethod
    def forward(
        ctx: Any,
        cells: Sequence[int],
        space: Communicator,
        eps: float,
        running: tuple[Tensor | None, Tensor | None, float],
        local: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """Normalize a shard; `cells` are the values per channel of each rank of `space`."""
        mean, variance = _statistics(local, cells, space)
        # Updated at the place where torch does it, too, so that it happens as often under
        # activation checkpointing, which recomputes no more than it must.
        _update(*running, mean, variance, sum(cells))
        ctx.space, ctx.count, ctx.eps = space, sum(cells), eps
        ctx.save_for_backward(local, weight, bias, mean, variance)
        return _apply(local, _kept(mean, local), _kept(variance, local), weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        local, weight, bias, mean, variance = ctx.saved_tensors
        space, count = ctx.space, ctx.count
        none = (None,) * 4
        if torch.is_grad_enabled():
            # It will be differentiated again: use operations that can be.
            inputs = [tensor for tensor in (local, weight, bias) if tensor is not None]
            wanted = [tensor for tensor in inputs if tensor.requires_grad]
            again = _by_parts(local, count, space, weight, bias, ctx.eps)
            found = iter(torch.autograd.grad(again, wanted, gradient, create_graph=True))
            return (
                *none,
                *(
                    next(found) if tensor is not None and tensor.requires_grad else None
                    for tensor in (local, weight, bias)
                ),
            )
        scale = torch.ones_like(_kept(mean, local)) if weight is None else weight
        if local.numel():
            # The part of the gradient that bypasses the statistics, and the sums of the gradient
            # and of the gradient times the normalized input, in one pass.
            direct, by_input, by_one = torch.ops.aten.native_batch_norm_backward(
                gradient.contiguous(memory_format=layout(local)),
                local,
                scale,
                mean.to(scale.dtype),
                variance.to(scale.dtype),
                None,
                None,
                False,
                ctx.eps,
                [True, True, True],
            )
        else:
            # The kernel may divide by the number of cells.
            direct, by_input, by_one = map(torch.zeros_like, (local, scale, scale))
        if ctx.needs_input_grad[4]:
            sums = space.allreduce(torch.stack([by_input, by_one]).to(mean.dtype))
            inverse = torch.rsqrt(variance + ctx.eps)
            slope = -scale * inverse * inverse * sums[0] / count
            level = -scale * inverse * sums[1] / count
            if _is_far(mean, variance):
                # This avoids subtracting large numbers from each other.
                local = local - _along_channels(mean, local)
            else:
                level -= slope * mean
            direct.addcmul_(local, _along_channels(slope, local))
            direct.add_(_along_channels(level, local))
        return (
            *none,
            direct if ctx.needs_input_grad[4] else None,
            by_input if ctx.needs_input_grad[5] else None,
            by_one if ctx.needs_input_grad[6] else None,
        )


def _update(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    mean: Tensor,
    variance: Tensor,
    count: int,
) -> None:
    """Update running statistics with those of `count` values per channel."""
    if count and running_mean is not None and running_var is not None:
        unbiased = variance * (count / (count - 1))
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)


def _statistics(local: Tensor, cells: Sequence[int], space: Communicator) -> tuple[Tensor, Tensor]:
    """Combine the shards' mean and (biased) variance per channel in fp64, by Chan's formula.

    One exchange: every rank knows how many cells each shard has. (Chan, Golub and
    LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
    1979.)
    """
    # torch rounds the shards' means once; computing in fp64 does not round them again.
    rows = torch.zeros((space.size, 2, local.shape[1]), dtype=torch.float64, device=local.device)
    if local.numel():
        rows[space.rank] = torch.stack(_moments(local.to(accumulate_dtype(local.dtype))))
    rows = space.allreduce(rows)
    weights = rows.new_tensor(cells)[:, None] / sum(cells)
    mean = (rows[:, 0] * weights).sum(0)
    return mean, ((rows[:, 1] + (rows[:, 0] - mean).square()) * weights).sum(0)


def _kept(statistic: Tensor, local: Tensor) -> Tensor:
    """Return it in the form that torch's kernels accept."""
    return statistic.to(accumulate_dtype(local.dtype))


def _moments(local: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and (biased) variance per channel of a shard that has cells; fp64."""
    if found := _moments_by_lines(local):
        return found
    if local.device.type == "cpu":
        # As exact as var_mean, which takes three times as long here.
        mean, variance = torch.batch_norm_update_stats(local, None, None, 0.0)
    else:
        variance, mean = torch.var_mean(local, [0, *range(2, local.ndim)], correction=0)
    exact = mean.double()
    if local.dtype != torch.float64 and _is_far(mean, variance):
        # The rounding error of the mean, which the mean over the shards would otherwise keep.
        exact += (local - _along_channels(mean, local)).mean([0, *range(2, local.ndim)])
    return exact, variance.double()


def _moments_by_lines(local: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the same from sums over lines of the last dim; None if that is less exact.

    On contiguous memory torch's kernel works cell by cell, and takes eight times as long.
    """
    if local.device.type != "cpu" or not local.is_contiguous() or local.shape[-1] > _LINE_CELLS:
        return None
    lines = local.view(*local.shape[:2], -1, local.shape[-1])
    cells = local.numel() // local.shape[1]
    mean = lines.sum(3).double().sum((0, 2)) / cells
    squares = torch.linalg.vector_norm(lines, dim=3).double().square().sum((0, 2)) / cells
    variance = squares - mean.square()
    # Not if the mean is far from zero, where the difference has few digits left, or beyond fp32's
    # range.
    if not bool((mean.square() <= 4 * variance).all() & squares.isfinite().all()):
        return None
    return mean, variance


def _is_far(mean: Tensor, variance: Tensor) -> bool:
    """Whether a mean is so far from zero that its rounding error shows in normalized values.

    Only on a CPU: elsewhere torch rounds means more coarsely, and this test takes longer.
    """
    return mean.device.type == "cpu" and bool((mean.square() > 16 * variance).any())


def _along_channels(values: Tensor, like: Tensor) -> Tensor:
    """Return one value per channel in a shape that broadcasts with (N, C, *space)."""
    return values.to(like.dtype).view(1, -1, *(1,) * (like.ndim - 2))


def _cells(x: SpatialTensor) -> list[int]:
    """Return the values per channel of each rank's shard."""
    ranks = range(x.grid.space.size)
    return [x.shape[0] * math.prod(lengths(_shard_of(x, rank))) for rank in ranks]


def _shard_of(x: SpatialTensor, rank: int) -> Any:
    return shard(x.extents, x.parts, coordinates_of(x.parts, rank))


def _by_parts(
    local: Tensor,
    count: int,
    space: Any,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Apply batch normalization by operations that can be differentiated any number of times."""
    dims = [0, *range(2, local.ndim)]
    normalised = normalise(local, dims, count, space, eps)
    shape = (1, -1, *(1,) * (local.ndim - 2))
    if weight is not None:
        normalised = normalised * weight.view(shape)
    return normalised if bias is None else normalised + bias.view(shape)
