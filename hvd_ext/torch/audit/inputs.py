"""Inputs of models: the tensors in calls of modules that no other module calls.

They are noticed by torch's hooks on all modules, so a program is audited unchanged. A tensor that
requires a gradient was computed, such as the argument of a loss: it is not an input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from hvd_ext.tensors import tensors_in
from hvd_ext.torch.audit.fingerprints import Stream


class Inputs:
    """Makes the fingerprint of the models' inputs since the last step."""

    def __init__(self) -> None:
        """Begin, without noticing calls."""
        self._stream = Stream()
        self._outermost: torch.nn.Module | None = None
        self._hooks: list[RemovableHandle] = []

    def listen(self, listening: bool) -> None:
        """Notice calls from now on, or stop: hooks cost time in every call of every module."""
        self.close()
        if listening:
            self._outermost = None
            self._hooks.append(register_module_forward_pre_hook(self._before))
            self._hooks.append(register_module_forward_hook(self._after, always_call=True))

    def take(self) -> int:
        """Return the fingerprint, and start over."""
        return self._stream.take()

    def close(self) -> None:
        """Stop noticing calls."""
        while self._hooks:
            self._hooks.pop().remove()

    def _before(self, module: torch.nn.Module, arguments: Any) -> None:
        if self._outermost is not None or not torch.is_grad_enabled():
            return
        self._outermost = module
        for tensor in tensors_in(arguments):
            if not tensor.requires_grad:
                self._stream.add(tensor)

    def _after(self, module: torch.nn.Module, arguments: Any, result: Any) -> None:
        if module is self._outermost:
            self._outermost = None
