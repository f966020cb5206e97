"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

import torch

from hvd_ext.torch.standalone import ranks
from hvd_ext.torch.standalone.differentiable import allreduce
from hvd_ext.torch.standalone.reductions import Sum


class SyncBatchNorm(torch.nn.BatchNorm2d):
    """Horovod's SyncBatchNorm, for any number of dimensions; also for tensors on the CPU.

    In training, mean and variance are those of all ranks' samples, and gradients go through them:
    two allreduces in forward, and two in backward.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm of {input.dim()} dimension(s): give (N, C, ...)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize (N, C, ...) along C."""
        self._check_input_dim(input)
        if ranks.size() == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        # (C, N, ...), because the code below sums and scales rows.
        rows = wide.transpose(0, 1)
        mean, variance, count = _statistics(rows.flatten(1))
        if self.training and self.running_mean is not None:
            self._update(mean.detach(), variance.detach(), count)
        shape = (-1, *(1,) * (rows.dim() - 1))
        scale = torch.rsqrt(variance + self.eps)
        rows = (rows - mean.view(shape)) * scale.view(shape)
        if self.affine:
            rows = rows * self.weight.view(shape) + self.bias.view(shape)
        return rows.transpose(0, 1).to(input.dtype)

    def _update(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:
            share = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / max(count - 1.0, 1.0))
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(unbiased.to(self.running_var), share)


def _statistics(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return mean and variance (C) of all ranks' rows (C, n), and the elements in a row."""
    channels = len(rows)
    own = torch.cat([rows.sum(1), rows.new_full((1,), rows.shape[1])])
    total = allreduce(own, op=Sum)
    count = float(total[channels].detach())
    mean = total[:channels] / count
    # In a second pass, because a difference of two sums would lose digits.
    squares = (rows - mean.view(-1, 1)).square().sum(1)
    return mean, allreduce(squares, op=Sum) / count, count
