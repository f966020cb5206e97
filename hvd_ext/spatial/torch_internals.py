"""The private behavior of torch that split tensors need, a function each.

No other file of this package uses a private name of torch. When a release of torch changes one of
these, its test in tests/single/spatial/test_torch_internals.py fails, and this file is the one to
fix. The two kernels taken from `torch.ops.aten` stand with the layers that call them.
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

# A mode whose __torch_dispatch__ sees each operation; torch documents it without exporting it.
TorchDispatchMode = _python_dispatch.TorchDispatchMode


def tensor_without_memory(cls: type[Any], shape: tuple[int, ...], like: Tensor) -> Any:
    """A tensor of a subclass that reports a shape and holds no memory.

    Args:
        cls: a subclass of Tensor.
        shape: the shape to report.
        like: gives dtype and device.

    Returns:
        A `cls`. It requires a gradient if a dtype allows that, so that a Function that hands it on
        meets `__torch_dispatch__`. C++ code that asks for its memory raises.
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
    """A context in which torch's functions do not call `__torch_function__` of a subclass."""
    context: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()
    return context


def is_view(tensor: Tensor) -> bool:
    """Whether autograd knows the tensor as a view of another one."""
    return tensor._is_view()


def changes(tensor: Tensor) -> int:
    """How often the tensor's memory was changed in place, counted over all its views."""
    return tensor._version


def storage_id(tensor: Tensor) -> int:
    """A number for the tensor's storage, on the meta device too.

    It is unique among storages that exist at the same time.
    """
    number: int = tensor.untyped_storage()._cdata
    return number


def overloads(operation: Any) -> Any:
    """The overloads that an operation of `__torch_dispatch__` belongs to: `aten.mm` of a mm."""
    return operation._overloadpacket


def become(tensor: Tensor, cls: type[Tensor]) -> None:
    """Make a tensor an object of another subclass; who has a reference to it sees that."""
    tensor.__class__ = cls


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether a module has full backward hooks or backward pre-hooks."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def convolve(module: nn.Module, x: Any, weight: Tensor, bias: Tensor | None) -> Any:
    """The output of a convolution layer with another weight and bias; its padding mode is kept."""
    forward: Any = module._conv_forward
    return forward(x, weight, bias)


class NeverParameter:
    """A base for subclasses of Tensor that `nn.Parameter` must not take."""

    @property
    def _is_param(self) -> bool:
        """nn.Parameter reads this attribute, and sets it on a tensor that becomes one."""
        return False

    @_is_param.setter
    def _is_param(self, wanted: bool) -> None:
        self.refuse_parameter()

    def refuse_parameter(self) -> None:
        """Raise the error of a tensor that was given to nn.Parameter."""
        raise NotImplementedError


# By the id of a frame's code object: that object, so that no other one gets its id, and whether it
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
    """Code of the forward of every class that inherits from `function`, without decorators."""
    for one in function.__subclasses__():
        yield getattr(inspect.unwrap(one.forward), "__code__", None)
        yield from _forwards(one)
