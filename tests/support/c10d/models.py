"""DDP models for tests of the exchange, and their gradients step by step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hvd_ext.c10d import attach

SHAPES = ((7,), (3, 5), (640,), (1,), (33, 17), (2, 3, 4, 5), (129,))
CAP_MB = 0.002  # several buckets


class Weighted(torch.nn.Module):
    """Parameters whose gradients are what `forward` is given."""

    def __init__(self, dtype: torch.dtype = torch.float32, shapes: Any = SHAPES) -> None:
        super().__init__()
        self.parameters_ = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes
        )

    def forward(self, gradients: list[torch.Tensor], skipped: int = -1) -> torch.Tensor:
        pairs = zip(self.parameters_, gradients, strict=True)
        terms = [(p * g).sum() for i, (p, g) in enumerate(pairs) if i != skipped]
        return torch.stack(terms).sum()


def gradients_of(
    rank: int, step: int, dtype: torch.dtype = torch.float32, shapes: Any = SHAPES
) -> list[torch.Tensor]:
    """A rank's gradients in a step; halves of them are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return [(g + 0.01 * g.sign()).to(dtype) for g in drawn]


def wrap(model: torch.nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, **{"bucket_cap_mb": CAP_MB, **options})


def flat(model: torch.nn.Module) -> torch.Tensor:
    """All gradients, one after the other, as bits; zeros where there is none."""
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([g.detach().reshape(-1).clone() for g in grads]).view(torch.uint8)


def train(
    hooked: bool,
    steps: int = 6,
    dtype: torch.dtype = torch.float32,
    skipped: Callable[[int], int] = lambda step: -1,
    accumulated: int = 1,
    shapes: Any = SHAPES,
    looked_at: Callable[[Any, Any], None] = lambda exchange, model: None,
    **options: Any,
) -> list[torch.Tensor]:
    """The gradients of each step, with hvd_ext's hook or without one.

    Args:
        hooked: by hvd_ext.
        steps: how many.
        dtype: of parameters.
        skipped: the parameter that a step does not use.
        accumulated: passes in each step; all but the last under no_sync.
        shapes: of parameters.
        looked_at: called with the exchange and the model in the end.
        options: of DDP.
    """
    model = wrap(Weighted(dtype, shapes), **options)
    exchange = attach(model) if hooked else None
    seen = []
    for step in range(steps):
        model.zero_grad(set_to_none=step % 2 == 0)
        for turn in range(accumulated):
            last = turn == accumulated - 1
            with nullcontext() if last else model.no_sync():
                values = gradients_of(dist.get_rank(), 10 * step + turn, dtype, shapes)
                model(values, skipped(step)).backward()
        seen.append(flat(model))
    if exchange is not None:
        looked_at(exchange, model)
    return seen
