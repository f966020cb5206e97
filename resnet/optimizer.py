"""The optimizer that the flags ask for, and its learning rate."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any

import torch
from torch import nn

from resnet.schedule import LearningRate
from training.ranks import exchange_options, passes

# The batch of --base-lr: 0.0125 for it are 0.1 for 256, as in Goyal et al.
_REFERENCE_BATCH = 32


def lr_scale(args: argparse.Namespace, hvd: ModuleType, device: torch.device) -> int:
    """Return the factor of the learning rate for the world's size.

    Averaged gradients of a larger batch allow a larger rate (Goyal et al., 2017). Adasum adapts
    itself, except to the ranks of a node whose gradients NCCL averages first.
    """
    if not args.use_adasum:
        return int(hvd.size())
    return int(hvd.local_size()) if device.type == "cuda" and hvd.nccl_built() else 1


def learning_rate(args: argparse.Namespace, hvd: ModuleType, device: torch.device) -> LearningRate:
    """From the rate of one batch to that of all batches of a step."""
    first = args.base_lr * args.batch_size / _REFERENCE_BATCH
    full = first * lr_scale(args, hvd, device) * passes(args, hvd)
    return LearningRate(first, full, args.epochs, args.warmup_epochs, args.schedule)


def sgd(args: argparse.Namespace, model: nn.Module) -> torch.optim.SGD:
    """SGD as Goyal et al., 2017, section 5.1: Nesterov's, and no decay of batch norms."""
    norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    known = set(map(id, norms))
    others = [p for p in model.parameters() if id(p) not in known]
    groups = [{"params": others, "weight_decay": args.wd}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, args.base_lr, momentum=args.momentum, nesterov=args.momentum > 0)


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
