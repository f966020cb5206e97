"""Fingerprints of tensors: 64 bits of xxHash (XXH3) over the bytes of their memory."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from hvd_ext.audit import UNKNOWN
from hvd_ext.errors import UsageError


def check_installed() -> None:
    """Raise a UsageError with the remedy if xxHash is not installed."""
    try:
        import xxhash  # noqa: F401
    except ImportError:
        raise UsageError(
            "an audit needs xxhash, which is not installed: pip install 'hvd-ext[audit]'"
        ) from None


def of_memory(address: int, count_bytes: int) -> int:
    """Return the fingerprint of memory of this process."""
    import xxhash

    if not count_bytes:
        return 1
    memory = (ctypes.c_char * count_bytes).from_address(address)
    return int(xxhash.xxh3_64_intdigest(memory)) or 1


def of_tensor(tensor: torch.Tensor | None) -> int:
    """Return the fingerprint of a tensor, in memory order; UNKNOWN if it has no memory."""
    if tensor is None or tensor.layout is not torch.strided or tensor.is_meta:
        return UNKNOWN
    plain = tensor.detach()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    if not _is_dense(plain):
        plain = plain.contiguous()
    try:
        address = plain.data_ptr()
    except RuntimeError:  # a tensor without memory, as a sharded optimizer leaves in .grad
        return UNKNOWN
    if not address and plain.numel():
        return UNKNOWN
    return of_memory(address, plain.numel() * plain.element_size())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in any order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return True


class Stream:
    """Makes one fingerprint of many tensors, in the order in which they come."""

    def __init__(self) -> None:
        import xxhash

        self._hash: Any = xxhash.xxh3_64()
        self._is_empty = True

    def add(self, tensor: torch.Tensor) -> None:
        """Add a tensor."""
        self._is_empty = False
        self._hash.update(of_tensor(tensor).to_bytes(8, "little"))

    def take(self) -> int:
        """Return the fingerprint, UNKNOWN if nothing was added, and start over."""
        found = UNKNOWN if self._is_empty else int(self._hash.intdigest()) or 1
        self._hash.reset()
        self._is_empty = True
        return found
