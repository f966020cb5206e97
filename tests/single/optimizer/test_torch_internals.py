"""Each private behaviour of torch that the optimizer needs, on the torch that is installed."""

from __future__ import annotations

import copy
import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest
import torch

# By its path: hvd_ext.torch needs Horovod, and this file of it does not.
_PATH = Path(__file__).resolve().parents[3] / "hvd_ext" / "torch" / "torch_internals.py"
_spec = importlib.util.spec_from_file_location("torch_internals", _PATH)
assert _spec
assert _spec.loader
internals: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(internals)


def in_flight() -> torch.Tensor:
    tensor = torch.zeros(4)
    tensor.__class__ = internals.InFlight
    return tensor


def test_versions_count_what_changes_a_tensor_and_its_views() -> None:
    tensor = torch.zeros(4)
    before = internals.version_of(tensor)
    tensor[1:].add_(1)
    assert internals.version_of(tensor) == before + 1
    tensor.data.add_(1)  # the reason for InFlight
    assert internals.version_of(tensor) == before + 1


def test_whoever_has_a_tensors_memory_is_counted() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    alone = internals.holders_of(parameter)
    other = torch.nn.Parameter(parameter.data)  # as torch.nn.utils.weight_norm makes one
    assert internals.holders_of(parameter) == alone + 1
    del other
    assert internals.holders_of(parameter) == alone


@pytest.mark.parametrize("write", ["tensor.data.add_(1)", "tensor.detach().mul_(2)"])
def test_a_tensor_in_flight_counts_what_is_written_to_its_data(write: str) -> None:
    tensor = in_flight()
    before = internals.version_of(tensor)
    eval(write)
    assert internals.version_of(tensor) > before


def test_several_gradients_are_copied_without_a_graph() -> None:
    source = torch.ones(2, 3, requires_grad=True) * 2
    into = [torch.zeros(3, 2).t(), torch.zeros(3)]
    internals.copy_all(into, [source, torch.full((3,), 5.0)])
    assert [tensor.sum().item() for tensor in into] == [12, 15]
    assert not any(tensor.requires_grad for tensor in into)


def test_a_call_after_backward_comes_when_all_gradients_are_there() -> None:
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    found: list[bool] = []

    def look() -> None:
        found.append(all(p.grad is not None for p in parameters))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(lambda _: internals.after_backward(look))
    sum(parameters, torch.zeros(1)).sum().backward()
    assert found == [True] * 3


def test_numpy_cannot_write_to_a_tensor_in_flight() -> None:
    array = in_flight().numpy()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_tensor_in_flight_computes_saves_and_copies_as_a_plain_one() -> None:
    tensor = in_flight()
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    for result in (tensor + 1, tensor[1:], copy.deepcopy(tensor), torch.load(file)):
        assert type(result) is torch.Tensor
    tensor.data = torch.ones(2)
    assert torch.equal(tensor, torch.ones(2))


def test_a_gradient_in_flight_becomes_a_plain_one_again() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.sum().backward()
    assert parameter.grad is not None
    parameter.grad.__class__ = internals.InFlight
    assert isinstance(parameter.grad, internals.InFlight)
    parameter.grad.__class__ = torch.Tensor
    assert type(parameter.grad) is torch.Tensor


class Recorded(torch.Tensor):
    """Notes what `__torch_function__` is given."""

    seen: list[Any]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.seen.append(function)
        if function.__name__ == internals.ASKS_TO_SET_DATA:
            return False
        if function.__name__ == internals.ZEROES_SEVERAL or function == internals.READS_DATA:
            return args[0]
        with internals.without_torch_function():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return torch.empty(3, 2, dtype=torch.float64)


def recorded() -> Any:
    like = torch.empty(3, 2, dtype=torch.float64)
    Recorded.seen = []
    return internals.tensor_without_memory(Recorded, like, (1, 3))


def test_a_tensor_without_memory_has_shape_strides_and_dtype() -> None:
    made = recorded()
    assert type(made) is Recorded
    with internals.without_torch_function():
        assert (tuple(made.shape), made.stride(), made.dtype) == ((3, 2), (1, 3), torch.float64)
    assert Recorded.seen == []


def test_reading_data_is_recognised() -> None:
    made = recorded()
    _ = made.data
    assert Recorded.seen == [internals.READS_DATA]


def test_writing_zeros_to_several_gradients_is_recognised() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    parameter.grad = recorded()
    torch.optim.SGD([parameter], lr=1.0, foreach=True).zero_grad(set_to_none=False)
    assert internals.ZEROES_SEVERAL in [f.__name__ for f in Recorded.seen]


def test_the_question_of_module_to_is_recognised() -> None:
    module = torch.nn.Linear(2, 3, dtype=torch.float64)
    module.weight.grad = recorded()
    module.to(torch.float64)
    assert internals.ASKS_TO_SET_DATA in [f.__name__ for f in Recorded.seen]


def hooked(calls: list[str]) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    return parameter, optimizer


def test_an_optimizer_without_hooks_leaves_them_to_the_other() -> None:
    calls: list[str] = []
    parameter, optimizer = hooked(calls)
    other = copy.copy(optimizer)
    internals.drop_step_hooks(other)
    other.step()
    assert (calls, parameter.item()) == ([], 0.0)
    optimizer.step()
    assert (calls, parameter.item()) == (["before", "after"], -1.0)


def test_the_step_of_a_class_is_found_without_hooks() -> None:
    calls: list[str] = []
    parameter, optimizer = hooked(calls)
    internals.unhooked_step(type(optimizer))(optimizer)
    assert (calls, parameter.item()) == ([], 0.0)

    class Plain(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            return "plain"

    assert internals.unhooked_step(Plain) is Plain.step  # no object of it has been made


def test_a_step_calls_the_hooks_of_its_optimizer() -> None:
    calls: list[str] = []
    _, optimizer = hooked(calls)

    @internals.calls_step_hooks
    def step(optimizer: torch.optim.Optimizer) -> str:
        calls.append("step")
        return "result"

    assert step(optimizer) == "result"
    assert calls == ["before", "step", "after"]


def test_torch_puts_no_hooks_around_a_step_that_needs_none() -> None:
    calls: list[str] = []

    class Calling(torch.optim.SGD):
        @internals.needs_no_hooks
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    _, optimizer = hooked(calls)
    optimizer.__class__ = Calling
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert calls == ["before", "after"]
