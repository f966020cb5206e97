"""Each private behaviour of torch that split tensors need, on the torch that is installed."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hvd_ext.spatial import torch_internals as internals


class Shown(internals.NeverParameter, Tensor):
    """Reports a shape; every operation on it ends in one of the two handlers."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return "function"

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise LookupError(str(function))

    def refuse_parameter(self) -> None:
        raise LookupError("refused")


def shown() -> Any:
    return internals.tensor_without_memory(Shown, (3, 5), torch.zeros(2, dtype=torch.float64))


def test_a_tensor_without_memory_reports_its_shape_and_gives_none() -> None:
    made = shown()
    with internals.without_torch_function():
        assert tuple(made.shape) == (3, 5)
        assert made.dtype == torch.float64
        assert made.requires_grad
        with pytest.raises(RuntimeError):
            made.data_ptr()
    whole = internals.tensor_without_memory(Shown, (3,), torch.zeros(2, dtype=torch.int64))
    with internals.without_torch_function():
        assert not whole.requires_grad


def test_without_torch_function_operations_reach_dispatch() -> None:
    made = shown()
    assert torch.add(made, made) == "function"
    with internals.without_torch_function(), pytest.raises(LookupError, match="add"):
        torch.add(made, made)
    assert torch.add(made, made) == "function"


def test_views_are_told_from_tensors_of_their_own() -> None:
    tensor = torch.zeros(4)
    assert internals.is_view(tensor[1:])
    assert not internals.is_view(tensor)
    assert not internals.is_view(tensor.clone())


def test_changes_are_counted_over_all_views() -> None:
    tensor = torch.zeros(4)
    before = internals.changes(tensor)
    tensor[1:].add_(1)
    assert internals.changes(tensor) == before + 1
    tensor + 1
    assert internals.changes(tensor) == before + 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_storages_are_told_apart(device: str) -> None:
    tensor, other = torch.zeros(4, device=device), torch.zeros(4, device=device)
    assert internals.storage_id(tensor) == internals.storage_id(tensor[2:])
    assert internals.storage_id(tensor) != internals.storage_id(other)


def test_a_mode_sees_operations_and_their_overloads() -> None:
    seen: list[Any] = []

    class Mode(internals.TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(internals.overloads(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert torch.ops.aten.mm in seen


def test_a_parameter_becomes_one_of_another_class_in_place() -> None:
    class Own(nn.Parameter):
        own = True

    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    internals.become(module.weight, Own)
    assert isinstance(module.weight, Own)
    assert isinstance(optimizer.param_groups[0]["params"][0], Own)
    module(torch.ones(1, 2)).sum().backward()
    assert torch.equal(module.weight.grad, torch.ones(2, 2))


@pytest.mark.parametrize("kind", ["full_backward_hook", "full_backward_pre_hook"])
def test_backward_hooks_of_a_module_are_seen(kind: str) -> None:
    module = nn.Linear(2, 2)
    assert not internals.has_backward_hooks(module)
    handle = getattr(module, f"register_{kind}")(lambda *_: None)
    assert internals.has_backward_hooks(module)
    handle.remove()
    assert not internals.has_backward_hooks(module)


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
def test_a_convolution_with_another_weight_keeps_its_padding(mode: str) -> None:
    one = nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode)
    other = nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode)
    x = torch.randn(1, 2, 6, 6)
    assert torch.equal(internals.convolve(one, x, other.weight, other.bias), other(x))


def test_a_tensor_refuses_to_become_a_parameter() -> None:
    made = shown()
    assert not isinstance(made, nn.Parameter)
    with pytest.raises(LookupError, match="refused"):
        made._is_param = True


def undecorated(function: Any) -> Any:
    @functools.wraps(function)
    def decorated(*args: Any) -> Any:
        return function(*args)

    return decorated


def test_the_forward_of_a_function_is_found_on_the_stack() -> None:
    found: list[bool] = []

    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            found.append((lambda: internals.within_function())())
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    class Derived(Plain):
        @staticmethod
        @undecorated
        def forward(ctx: Any, x: Tensor) -> Tensor:
            found.append(internals.within_function())
            return x.clone()

    x = torch.zeros(2, requires_grad=True)
    Plain.apply(x)
    Derived.apply(x)
    assert found == [True, True]
    assert not internals.within_function()
