"""The modules of an optimizer's parameters, while nodes have different weights.

Modules are found at their first call, by torch's hook on all modules. Evaluating or saving them is
refused; the statistics of their batch norms are averaged.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from hvd_ext.errors import UsageError

_STATISTICS = "running_"  # prefix of the buffers of batch norms


class ModelGuard:
    """Finds the modules that own parameters, and the batch norms among them."""

    def __init__(self, parameters: Sequence[torch.Tensor], differ: Callable[[], bool]) -> None:
        """Look for modules from now on.

        Args:
            parameters: those that are trained.
            differ: whether nodes have different weights now.
        """
        self._differ = differ
        self._trained = {id(p) for p in parameters}
        self._met: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._norms: list[weakref.ref[torch.nn.Module]] = []  # in call order, as on all ranks
        guard = weakref.ref(self)

        def meet(module: torch.nn.Module, _: Any) -> None:
            owner = guard()
            if owner is not None and module.training and torch.is_grad_enabled():
                owner._meet(module)

        self._looking = register_module_forward_pre_hook(meet)
        weakref.finalize(self, self._looking.remove)

    def statistics(self) -> list[torch.Tensor]:
        """Return the buffers of batch norms' means and variances; all modules are known now."""
        self._looking.remove()
        norms = [norm for ref in self._norms if (norm := ref()) is not None]
        return [b for norm in norms for b in _statistics(norm)]

    def _meet(self, module: torch.nn.Module) -> None:
        if module in self._met:
            return
        self._met.add(module)
        if _statistics(module):
            self._norms.append(weakref.ref(module))
        elif not any(id(p) in self._trained for p in module.parameters(recurse=False)):
            return
        else:  # a norm may be frozen, by eval(), while the model is trained
            module.register_forward_pre_hook(_Evaluating(self._differ))
        module.register_state_dict_pre_hook(_Saving(self._differ))


class _Refusing:
    """A hook of a module; an unpickled copy does nothing."""

    def __init__(self, differ: Callable[[], bool] = lambda: False) -> None:
        self._differ = differ

    def __reduce__(self) -> tuple[type[_Refusing], tuple[()]]:
        return type(self), ()

    def _refuse(self, doing: str) -> None:
        if self._differ():
            raise UsageError(
                f"{doing} a model whose weights differ between nodes, in the middle of a round: "
                "call optimizer.drain() on all ranks before"
            )


class _Evaluating(_Refusing):
    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        if not module.training and not torch.is_grad_enabled():
            self._refuse("evaluating")


class _Saving(_Refusing):
    def __call__(self, *_: Any) -> None:
        self._refuse("saving")


def _statistics(module: torch.nn.Module) -> list[torch.Tensor]:
    return [
        buffer
        for name, buffer in module.named_buffers(recurse=False)
        if name.startswith(_STATISTICS) and buffer.is_floating_point()
    ]
