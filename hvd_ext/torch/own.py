"""Parameters that only one rank has: their gradients are complete, and are not reduced.

`hvd_ext.spatial`'s split filters are such parameters, marked by the attribute `hvd_ext_own`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hvd_ext.errors import UsageError


def is_own(parameter: torch.Tensor) -> bool:
    """Whether other ranks have other values in this parameter."""
    return bool(getattr(parameter, "hvd_ext_own", False))


def refuse_own(parameters: Iterable[torch.Tensor], what: str, instead: str) -> None:
    """Refuse operations that would treat ranks' own parameters as shared.

    Args:
        parameters: an optimizer's parameters.
        what: name of the refused operation.
        instead: what to do.

    Raises:
        UsageError: a parameter is a rank's own.
    """
    if any(map(is_own, parameters)):
        raise UsageError(f"{what}, of a model whose ranks have different filters: {instead}")
