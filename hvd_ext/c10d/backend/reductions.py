"""The reductions of torch.distributed: by the window's kernels, or row by row for rare ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hvd_ext.c10d.torch_internals import reduction_name
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError
from hvd_ext.tensors import dtype_name


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reduction.

    Attributes:
        name: torch's name.
        kernel: its name in the window; "" if the window has none.
        combine: combines the elements of two tensors.
        is_average: whether the sum is divided by the number of ranks.
    """

    name: str
    kernel: str
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    is_average: bool = False

    def has_kernel(self, dtype: torch.dtype) -> bool:
        """Whether the window reduces this dtype."""
        return bool(self.kernel) and dtype_name(dtype) in DTYPES


_REDUCTIONS = {
    reduction.name: reduction
    for reduction in (
        Reduction("SUM", "sum", torch.add),
        Reduction("AVG", "sum", torch.add, is_average=True),
        Reduction("MIN", "min", torch.minimum),
        Reduction("MAX", "max", torch.maximum),
        Reduction("PRODUCT", "product", torch.mul),
        Reduction("BAND", "", torch.bitwise_and),
        Reduction("BOR", "", torch.bitwise_or),
        Reduction("BXOR", "", torch.bitwise_xor),
    )
}


def reduction_of(name: str, options: Any, dtype: torch.dtype) -> Reduction:
    """The reduction that a collective's options name.

    Args:
        name: the collective's name, for errors.
        options: options of torch's collective.
        dtype: type of the reduced elements.

    Raises:
        UsageError: hvd_ext has no reduction of that name, or the reduction needs another dtype.
    """
    asked = reduction_name(options)
    found = _REDUCTIONS.get(asked)
    if found is None:
        raise UsageError(f"{name} with {asked}: use one of {', '.join(_REDUCTIONS)}")
    is_float = dtype.is_floating_point
    if found.is_average and dtype == torch.bool:
        raise UsageError(f"{name} with AVG of bool: use SUM, or a number's dtype")
    if not found.kernel and is_float:
        raise UsageError(f"{name} with {asked} of {dtype_name(dtype)}: use an integer dtype")
    return found
