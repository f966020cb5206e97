"""Parameters that are a rank's own: their gradients are complete, and nobody else's fit them.

`hvd_ext.spatial`'s split filters are such. They say so by their attribute `hvd_ext_own`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import horovod.torch as horovod
import torch

from hvd_ext.errors import UsageError


def is_own(parameter: torch.Tensor) -> bool:
    """Whether other ranks have other numbers there."""
    return bool(getattr(parameter, "hvd_ext_own", False))


def refuse_own(parameters: Iterable[torch.Tensor], what: str, instead: str) -> None:
    """Refuse what would take ranks' own parameters for everybody's.

    Args:
        parameters: of an optimizer.
        what: is refused.
        instead: what to do.

    Raises:
        UsageError: one of them is a rank's own.
    """
    if any(map(is_own, parameters)):
        raise UsageError(f"{what}, of a model whose ranks have filters of their own: {instead}")


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """As Horovod's, but ranks keep what is their own, and tensors may have any strides."""
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # and what each is a copy of

    def contiguous(p: Any) -> Any:
        if not torch.is_tensor(p) or p.is_contiguous():
            return p
        copies.append((p.detach().contiguous(), p))
        return copies[-1][0]

    if isinstance(params, dict):
        params = {name: contiguous(p) for name, p in params.items() if not is_own(p)}
    elif isinstance(params, list):
        pairs = [p if isinstance(p, tuple) else (None, p) for p in params]
        params = [(name, contiguous(p)) for name, p in pairs if not is_own(p)]
    _horovods_broadcast(params, root_rank)
    for copy, p in copies:
        p.detach().copy_(copy)


_horovods_broadcast = horovod.broadcast_parameters
