"""Attributes of a tensor that need none of its cells: the values are those of the whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.torch_internals import without_torch_function

METHODS = (
    *("dim", "ndimension", "size", "numel", "nelement", "element_size", "get_device"),
    *("is_floating_point", "is_complex", "is_signed", "is_contiguous"),
)
# Not is_nested, which torch.autograd.backward reads of tensors of which it takes gradients.
ATTRIBUTES = (
    *("shape", "ndim", "dtype", "device", "layout", "itemsize", "nbytes"),
    *("is_cpu", "is_cuda", "is_meta", "is_sparse", "is_quantized", "is_mkldnn"),
)


def _answer(function: Any) -> Any:
    def handler(x: SpatialTensor, *args: Any, **options: Any) -> Any:
        with without_torch_function():
            return function(x, *args, **options)

    return handler


for _function in (
    *(torch.numel, torch.is_floating_point, torch.is_complex, torch.is_signed),
    *(getattr(Tensor, name) for name in METHODS),
    *(getattr(Tensor, name).__get__ for name in ATTRIBUTES),
):
    implements(_function)(_answer(_function))


@implements(Tensor.__len__)
def length(x: SpatialTensor) -> int:
    return x.shape[0]


def _made_beside(function: Any) -> Any:
    def handler(x: SpatialTensor, *args: Any, **options: Any) -> Tensor:
        made: Tensor = function(x.local, *args, **options)
        return made

    return handler


# Only the tensor's dtype and device are read: the new tensor is whole on every rank.
for _function in (
    *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty, Tensor.new_tensor),
):
    implements(_function)(_made_beside(_function))
