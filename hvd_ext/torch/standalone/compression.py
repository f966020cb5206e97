"""Horovod's two compressors of single collectives: none, and 16 bits."""

from __future__ import annotations

import torch


class NoneCompressor:
    """Leaves tensors unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the tensor, and the context for decompress()."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: None) -> torch.Tensor:
        """The tensor."""
        del context
        return tensor


class FP16Compressor:
    """Exchanges floats as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """Return the tensor as float16, and its type; integers stay unchanged."""
        exchanged = tensor.to(torch.float16) if tensor.is_floating_point() else tensor
        return exchanged, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: torch.dtype) -> torch.Tensor:
        """Return the tensor in its original type."""
        return tensor.to(context)


class Compression:
    """The compressors of `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
