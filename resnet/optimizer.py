"""The DistributedOptimizer that the flags ask for, and its learning rate."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any

import torch
from torch import nn

from training.ranks import exchange_options


def lr_scale(args: argparse.Namespace, hvd: ModuleType, device: torch.device) -> int:
    """By how much the learning rate grows with the world.

    Averaged gradients of a larger batch bear a larger rate (Goyal et al., 2017). Adasum
    adapts itself, except to the ranks of a node whose gradients NCCL averages first.
    """
    if not args.use_adasum:
        return int(hvd.size())
    return int(hvd.local_size()) if device.type == "cuda" and hvd.nccl_built() else 1


def distributed(
    args: argparse.Namespace,
    hvd: ModuleType,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    passes: int = 1,
) -> Any:
    """The DistributedOptimizer that the flags ask for, with `passes` backward passes a step."""
    options = exchange_options(args, hvd)
    if args.fp16_allreduce:
        options["compression"] = hvd.Compression.fp16
    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
        **options,
    )
