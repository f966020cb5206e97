"""The private behavior of torch that the optimizer needs: one function or class for each.

No other file of hvd_ext.torch uses a private name of torch; those of Horovod are used in
horovods.py. When a release of torch changes one of these, its test fails, in
tests/single/optimizer/test_torch_internals.py, and this file is the one to fix.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, TypeVar, cast

import torch

_Step = TypeVar("_Step", bound=Callable[..., Any])

# Returns how often a tensor's memory was changed in place, also through views. A C function,
# because it is called twice for each parameter in each step.
version_of: Callable[[torch.Tensor], int] = attrgetter("_version")


def copy_all(into: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its tensor, without a graph: one call for all of them."""
    with torch.no_grad():
        torch._foreach_copy_(into, sources)


def holders_of(tensor: torch.Tensor) -> int:
    """Return how many tensors and storages of this process have the tensor's memory."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def after_backward(call: Callable[[], None]) -> None:
    """Run `call` at the end of the current backward pass, on its thread.

    It does not run if that pass fails.
    """
    torch.autograd.Variable._execution_engine.queue_callback(call)


class InFlight(torch.Tensor):
    """A gradient while it is exchanged, which detects writes.

    Peers write their sums into the arena's memory between backward() and synchronize(), and `.grad`
    is a view of that memory. A rank that also writes there ends with sums that differ from its
    peers'. torch counts versions, so `GradientSlot` notices `p.grad.clamp_()`; but the result of
    `.data` has a new counter, and NumPy's writes are not counted. Here `.data` counts versions with
    the tensor, and NumPy arrays are read-only.

    An existing tensor becomes an InFlight by its `__class__`, and a tensor again: that takes some
    60 ns, and operations return plain tensors, as a Parameter's do.
    """

    __torch_function__ = torch.nn.Parameter.__torch_function__

    @property
    def data(self) -> Any:
        """Return the tensor's data like torch, but count writes to it as writes to this tensor."""
        data = self.detach()
        data.__class__ = InFlight
        return data

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]

    def numpy(self, *, force: bool = False) -> Any:
        """Return a NumPy array like torch, but read-only."""
        array = super().numpy(force=force)
        array.flags.writeable = False
        return array

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return copy.deepcopy(self.detach(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.detach().__reduce_ex__(protocol)


# The function that `__torch_function__` gets if a program reads `tensor.data`, ...
READS_DATA = vars(torch._C.TensorBase)["data"].__get__
# ... if an optimizer's zero_grad(set_to_none=False) writes to several gradients, by name, ...
ZEROES_SEVERAL = "_foreach_zero_"
# ... and if Module.to asks whether it may write `gradient.data = ...`, by name.
ASKS_TO_SET_DATA = "_has_compatible_shallow_copy_type"


def tensor_without_memory(
    cls: type[Any], like: torch.Tensor, strides: tuple[int, ...]
) -> torch.Tensor:
    """Make a `cls`, a subclass of Tensor, with `like`'s shape, dtype and device, and no memory."""
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(
        cls, like.shape, strides=strides, dtype=like.dtype, device=like.device
    )
    return made


def without_torch_function() -> AbstractContextManager[None]:
    """Return a context in which torch's functions do not call a subclass's `__torch_function__`."""
    context: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()
    return context


# The attributes in which an optimizer keeps the hooks of its step.
STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def drop_step_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Remove an optimizer's hooks, but not from another optimizer that shares them."""
    for name in STEP_HOOKS:
        setattr(optimizer, name, OrderedDict())


def calls_step_hooks(step: _Step) -> _Step:
    """Wrap a step so that it calls its optimizer's hooks, as torch wraps an optimizer's own."""
    hooked: Any = torch.optim.Optimizer.profile_hook_step(step)
    return cast(_Step, hooked)


def needs_no_hooks(step: _Step) -> _Step:
    """Mark a step that calls another one with hooks, so that torch does not wrap it.

    torch wraps steps when an optimizer is made, and in load_state_dict; hooks would be called
    twice.
    """
    step.hooked = True  # type: ignore[attr-defined]
    return step


def unhooked_step(make: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """Return the step of an optimizer's class, without torch's wrapper that calls hooks."""
    step: Callable[..., Any] = make.step
    return getattr(step, "__wrapped__", step) if hasattr(step, "hooked") else step
