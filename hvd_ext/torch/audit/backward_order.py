"""The order in which backward computes gradients, which need not be that of the definition."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch


class BackwardOrder:
    """Watches gradients of parameters until the order is known."""

    def __init__(self, pairs: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        """Begin.

        Args:
            pairs: names and parameters.
        """
        self._names: dict[str, None] = {}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(self._note, name))
            for name, parameter in pairs
            if parameter.requires_grad
        ]

    def end(self) -> tuple[str, ...]:
        """The names of the parameters that had a gradient, in the order of their first ones."""
        for hook in self._hooks:
            hook.remove()
        return tuple(self._names)

    def _note(self, name: str, parameter: torch.Tensor) -> None:
        self._names.setdefault(name)
