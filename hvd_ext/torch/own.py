"""Parameters that are a rank's own: their gradients are complete, and nobody else's fit them.

`hvd_ext.spatial`'s split filters are such. They say so by their attribute `hvd_ext_own`.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        raise UsageError(f"{what}, of a model whose ranks have different filters: {instead}")
