"""The private behavior of torch that split tensors need: one function for each.

No other file of this package uses a private name of torch. When a release of torch changes one of
these, its test in tests/single/spatial/test_torch_internals.py fails, and this file is the one to
fix. The two kernels of `torch.ops.aten` are in the files of the layers that call them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch

# A mode whose __torch_dispatch__ gets each operation; torch documents it but does not export it.
TorchDispatchMode = _python_dispatch.TorchDispatchMode


def tensor_without_memory(cls: type[Any], shape: tuple[int, ...], like: Tensor) -> Any:
    """Make a tensor of a subclass that reports a shape and has no memory.

    Args:
        cls: a subclass of Tensor.
        shape: the shape to report.
        like: gives dtype and device.

    Returns:
        A `cls`. It requires a gradient if its dtype allows that, so that a Function that returns it
        calls `__torch_dispatch__`. C++ code that reads its memory raises an error.
    """
    made = Tensor._make_wrapper_subclass(
        cls,
        shape,
        dtype=like.dtype,
        device=like.device,
        requires_grad=like.is_floating_point() or like.is_complex(),
    )
    torch._C._set_throw_on_mutable_data_ptr(made)
    return made


def without_torch_function() -> AbstractContextManager[None]:
    """Return a context in which torch's functions do not call a subclass's `__torch_function__`."""
    context: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()
    return context


def is_view(tensor: Tensor) -> bool:
    """Whether autograd treats the tensor as a view of another one."""
    return tensor._is_view()


def changes(tensor: Tensor) -> int:
    """Return how often the tensor's memory was changed in place, also through views."""
    return tensor._version


def storage_id(tensor: Tensor) -> int:
    """Return a number of the tensor's storage, also on the meta device.

    It is unique among storages that exist at the same time.
    """
    number: int = tensor.untyped_storage()._cdata
    return number


def overloads(operation: Any) -> Any:
    """Return the overloads of an operation of `__torch_dispatch__`, such as `aten.mm`."""
    return operation._overloadpacket


def become(tensor: Tensor, cls: type[Tensor]) -> None:
    """Change a tensor's class to another subclass, for all references to it."""
    tensor.__class__ = cls


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether a module has full backward hooks or backward pre-hooks."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def convolve(module: nn.Module, x: Any, weight: Tensor, bias: Tensor | None) -> Any:
    """Compute a convolution layer with another weight and bias, but its own padding mode."""
    forward: Any = module._conv_forward
    return forward(x, weight, bias)


class NeverParameter:
    """A base for subclasses of Tensor that `nn.Parameter` must refuse."""

    @property
    def _is_param(self) -> bool:
        """Refuse nn.Parameter, which sets this attribute on a tensor that becomes one."""
        return False

    @_is_param.setter
    def _is_param(self, wanted: bool) -> None:
        self.refuse_parameter()

    def refuse_parameter(self) -> None:
        """Raise the error of a tensor that was given to nn.Parameter."""
        raise NotImplementedError


# By the id of a frame's code object: the object, so that no other one gets its id, and whether it
# is the forward of a Function.
_known: dict[int, tuple[CodeType, bool]] = {}


def within_function() -> bool:
    """Whether the caller was called by the forward of a torch.autograd.Function.

    `Function.apply` is Python in some releases of torch and C++ in others. The user's `forward` is
    a Python frame in all of them.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if _is_forward(frame.f_code):
            return True
    return False


def _is_forward(code: CodeType) -> bool:
    known = _known.get(id(code))
    if known is None:
        found = any(code is one for one in _forwards(torch.autograd.Function))
        known = _known[id(code)] = (code, found)
    return known[1]


def _forwards(function: Any) -> Iterator[CodeType | None]:
    """Return the code of forward of every subclass of `function`, without decorators."""
    for one in function.__subclasses__():
        yield getattr(inspect.unwrap(one.forward), "__code__", None)
        yield from _forwards(one)
