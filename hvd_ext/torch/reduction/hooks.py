"""The hooks by which autograd passes gradients to a reducer."""

from __future__ import annotations

import weakref
from typing import Protocol

import torch
from torch.utils.hooks import RemovableHandle

from hvd_ext.events import HandingOver


class TakesGradients(Protocol):
    """A reducer.

    Attributes:
        listening: whether autograd's gradients are for this reducer.
        times_hooks: whether hooks are timed in this step.
    """

    listening: bool
    times_hooks: bool

    def ready(self, index: int) -> None:
        """Take the gradient of the parameter with this index, which autograd has made."""


class Hooks:
    """The hooks of one reducer; they are removed when it is dropped."""

    def __init__(self, reducer: TakesGradients) -> None:
        # Parameters must not keep the optimizer's objects alive, because the garbage collector does
        # not see such a cycle through autograd's hooks.
        self._reducer = weakref.ref(reducer)
        self._handles: dict[int, RemovableHandle] = {}
        weakref.finalize(reducer, _remove, self._handles).atexit = False

    def add(self, index: int, parameter: torch.nn.Parameter) -> None:
        """Watch the parameter with this index."""
        reducer = self._reducer

        def on_gradient(_: torch.Tensor) -> None:
            owner = reducer()
            if owner is None or not owner.listening:
                return
            if owner.times_hooks:
                with HandingOver():
                    owner.ready(index)
            else:
                owner.ready(index)

        self._handles[index] = parameter.register_post_accumulate_grad_hook(on_gradient)

    def remove(self, index: int) -> None:
        """Stop watching the parameter with this index."""
        self._handles.pop(index).remove()


def _remove(handles: dict[int, RemovableHandle]) -> None:
    for handle in handles.values():
        handle.remove()
