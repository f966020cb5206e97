"""What Python code does with tensors, besides calling layers: equal to the unsplit, or refused."""

from __future__ import annotations

import copy
import io
import math
import operator
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import einops
import numpy as np
import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hvd_ext.spatial import ProcessGrid, SpatialTensor, UnsupportedError, gather, scatter
from tests.support.spatial.on_grids import normal, on_grid

X = normal(2, 4, 6, 7)


def whole(value: Any) -> Any:
    if isinstance(value, SpatialTensor):
        return gather(value)
    if isinstance(value, list | tuple):
        return [whole(item) for item in value]
    return value


def in_place(x: Any, change: Callable[[Any], Any]) -> list[Any]:
    """What a change in place returned, whether that is what was changed, and what became of it."""
    x = x.clone()
    found = change(x)
    return [found, found is x, x]


def skip_added(x: Any, skip: Any) -> Any:
    return x + skip if isinstance(skip, Tensor) else x


SAME: dict[str, Callable[[Any], Any]] = {
    "isinstance": lambda x: isinstance(x, Tensor),
    "is_tensor": lambda x: torch.is_tensor(x),
    "jit.isinstance": lambda x: torch.jit.isinstance(x, Tensor),
    "not a parameter": lambda x: isinstance(x, nn.Parameter),
    "a skip connection": lambda x: skip_added(F.relu(x), x),
    "match": lambda x: [case for case in [x] if type(case) is not tuple and case is x] == [x],
    "len": len,
    "iteration": lambda x: [sample * 2 for sample in x],
    "unpacking": lambda x: operator.add(*x.chunk(2, 1)),
    "enumerate and zip": lambda x: [a + i * b for i, (a, b) in enumerate(zip(x, x, strict=True))],
    "shape": lambda x: [tuple(x.shape), tuple(x.size()), x.size(-1), x.ndim, x.dim()],
    "numbers of it": lambda x: [x.numel(), torch.numel(x), x.nelement(), x.nbytes, x.itemsize],
    "kinds of it": lambda x: [x.is_floating_point(), torch.is_complex(x), x.layout, x.is_meta],
    "dtype and device": lambda x: [x.dtype, x.device, x.is_cuda, x.get_device(), x.is_cpu],
    "in a list": lambda x: x in [x],
    "in a set": lambda x: x in {x},
    "a dict's key": lambda x: {x: 1}[x],
    "equal to None": lambda x: [x == None, x != None, None in [x]],  # noqa: E711
    "a weak reference": lambda x: weakref.ref(x)() is x,
    "signs": lambda x: [-x, +x, abs(x), ~(x > 0)],
    "remainders": lambda x: [x % 2, x // 2, 5 // (x.abs() + 1), 5 % (x.abs() + 1)],
    "powers": lambda x: [x**2, 2**x, pow(x, 2)],
    "logic": lambda x: [(x > 0) & (x < 1), (x > 0) | (x < -1), (x > 0) ^ (x > 1)],
    "sum of a list": lambda x: sum([x, x]),
    "a number of numpy": lambda x: [np.float64(2) * x, x / np.float32(2)],
    "the same object": lambda x: [x.double() is x, x.to(x.dtype) is x, x.contiguous() is x],
    "relu_": lambda x: in_place(x, lambda y: y.relu_()),
    "inplace": lambda x: in_place(x, lambda y: F.leaky_relu(y, 0.1, inplace=True)),
    "+=": lambda x: in_place(x, lambda y: operator.iadd(y, 1)),
    "*=": lambda x: in_place(x, lambda y: operator.imul(y, y)),
    "**=": lambda x: in_place(x, lambda y: operator.ipow(y, 2)),
    "an alias": lambda x: in_place(x, lambda y: y[:, 1].mul_(2)),
    "detached": lambda x: in_place(x, lambda y: y.detach().add_(1)),
    "what is made beside it": lambda x: [x.new_zeros(2, 1, 1, 1), x.new_tensor([1.0])],
    "requires_grad": lambda x: [x.requires_grad, setattr(x, "requires_grad", True)],
}


@pytest.mark.parametrize("what", SAME)
def test_an_idiom_gives_what_it_gives_of_the_whole(what: str) -> None:
    expected = whole(SAME[what](X.clone()))
    for found in on_grid((1, 2, 2), lambda grid: whole(SAME[what](scatter(X, grid)))):
        assert_same(found, expected)


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


EINOPS: dict[str, Callable[[Any, Any], Any]] = {
    "channels last": lambda e, x: e.rearrange(x, "b c h w -> b h w c"),
    "groups": lambda e, x: e.rearrange(x, "b (g c) h w -> b c g h w", g=2),
    "a list": lambda e, x: e.rearrange([x, x], "k b c h w -> b (k c) h w"),
    "mean of space": lambda e, x: e.reduce(x, "b c h w -> b c", "mean"),
    "max of channels": lambda e, x: e.reduce(x, "b (g c) h w -> b c h w", "max", g=2),
    "repeat": lambda e, x: e.repeat(x, "b c h w -> b (r c) h w", r=2),
    "tokens": lambda e, x: e.rearrange(x, "b c h w -> b (h w) c"),
    "patches": lambda e, x: e.rearrange(x, "b c (h p) w -> b (c p) h w", p=2),
}


@pytest.mark.parametrize("what", EINOPS)
def test_einops_gives_what_it_gives_of_the_whole(what: str) -> None:
    expected = EINOPS[what](einops, X)
    for found in on_grid((1, 2, 2), lambda grid: whole(EINOPS[what](einops, scatter(X, grid)))):
        torch.testing.assert_close(found, expected)


class Doubled(torch.autograd.Function):
    """A user's function, which torch calls without gradients."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


class Reversed(torch.autograd.Function):
    """Its forward does nothing to the tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -gradient


class Decorated(torch.autograd.Function):
    """Its forward is not what torch calls."""

    @staticmethod
    @torch.no_grad()
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


class SetUpApart(Doubled):
    """Its forward knows of no context; torch calls that of a class made of it."""

    @staticmethod
    def forward(x: Any) -> Any:  # type: ignore[override]
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


@torch.no_grad()
def decorated(x: Any) -> Any:
    """No Function's, though it has what decorates one's forward."""
    return x * 2


def learnt(x: Any) -> Any:
    """The tensor, with gradients that flow through it."""
    return x.requires_grad_() * 1


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x + 1


ORDINARY = torch.ones(2, 4, 6, 7, dtype=torch.float64)
REFUSED: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "if": lambda x: 1 if x.sum(1) else 2,
    "not": lambda x: not x,
    "assert of a comparison": lambda x: bool(x == x),
    "float": float,
    "int": int,
    "complex": complex,
    "index": lambda x: [1][x],
    "range": lambda x: range(x),
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "sqrt": lambda x: math.sqrt(x),
    "largest of a list": lambda x: max([x, x + 1]),
    "a number in it": lambda x: 1.0 in x,
    "an equal one in a list": lambda x: x in [x.clone()],
    "reversed": lambda x: reversed(x),
    "numpy": lambda x: x.numpy(),
    "numpy, forced": lambda x: x.numpy(force=True),
    "np.asarray": lambda x: np.asarray(x),
    "np.array": lambda x: np.array([x, x]),
    "a function of numpy": lambda x: np.exp(x),
    "data_ptr": lambda x: x.data_ptr(),
    "storage": lambda x: x.storage(),
    "untyped_storage": lambda x: x.untyped_storage(),
    "data": lambda x: x.data,
    "setting data": lambda x: setattr(x, "data", ORDINARY),
    "grad": lambda x: x.grad,
    "setting grad": lambda x: setattr(x, "grad", ORDINARY),
    "grad_fn": lambda x: x.grad_fn,
    "T": lambda x: x.mT,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "save": lambda x: torch.save({"x": x}, io.BytesIO()),
    "share_memory_": lambda x: x.share_memory_(),
    "dlpack": lambda x: x.__dlpack__(),
    "from_dlpack": lambda x: torch.from_dlpack(x),
    "resize_": lambda x: x.resize_(1),
    "as_strided": lambda x: x.as_strided((1,), (1,)),
    "stride": lambda x: x.stride(),
    "gather of torch": lambda x: x.gather(1, torch.zeros(2, 4, 6, 7).long()),
    "setitem": lambda x: operator.setitem(x, 0, 1),
    "+= of an item": lambda x: operator.setitem(x, 0, x[0] + 1),
    "into an ordinary one": lambda x: operator.setitem(ORDINARY, slice(None), x),
    "copy_ into an ordinary one": lambda x: ORDINARY.copy_(x),
    "+= of an ordinary one": lambda x: operator.iadd(ORDINARY, x),
    "out": lambda x: torch.mul(x, 2, out=ORDINARY),
    "an index of an ordinary one": lambda x: ORDINARY[x > 0],
    "an operand of an ordinary one": lambda x: F.conv2d(ORDINARY, x),
    "nn.Parameter": lambda x: nn.Parameter(x),
    "torch.tensor": lambda x: torch.tensor(x),
    "torch.Tensor": lambda x: torch.Tensor(x),
    "torch.asarray": lambda x: torch.asarray(x, copy=True),
    "as_subclass": lambda x: x.as_subclass(Tensor),
    "ops.aten": lambda x: torch.ops.aten.relu(x),
    "ops.aten, by overload": lambda x: torch.ops.aten.add.Tensor(x, x),
    "without __torch_function__": lambda x: Tensor.__torch_function__(torch.relu, (), (x,)),
    "vmap": lambda x: torch.func.vmap(torch.relu)(x),
    "backward": lambda x: learnt(x).backward(torch.ones(2, 4, 6, 7)),
    "autograd.backward": lambda x: torch.autograd.backward([learnt(x)], [ORDINARY]),
    "autograd.grad": lambda x: torch.autograd.grad(learnt(x).sum(), x),
    "register_hook": lambda x: learnt(x).register_hook(print),
    "a Function": lambda x: Doubled.apply(learnt(x)),
    "a Function whose forward is decorated": lambda x: Decorated.apply(learnt(x)),
    "a Function that sets its context up apart": lambda x: SetUpApart.apply(learnt(x)),
    "a Function that does nothing": lambda x: Reversed.apply(learnt(x)),
    "a reentrant checkpoint": lambda x: checkpoint(lambda y: y * 2, learnt(x), use_reentrant=True),
    "changed after it was flattened": lambda x: [x.flatten(1), x.relu_()][0],
    "changed, and an alias flattened": lambda x: [x[:, :2].flatten(1), F.relu(x, inplace=True)][0],
    "flattened, and changed": lambda x: [F.relu(x.flatten(1), inplace=True), x + 1],
    "viewed, and changed": lambda x: [x.view(2, -1).mul_(2), x + 1],
    "flattened and changed, an alias": lambda x: [x.flatten(1).mul_(2), x[:, 1] + 1][1],
    "flattened and changed, in inference": torch.inference_mode()(
        lambda x: [F.relu(x.flatten(1), inplace=True), x + 1]
    ),
    "flattened and changed, then gathered": lambda x: [x.flatten(1).mul_(2), gather(x)],
    "dropped after it was flattened": lambda x: [x.flatten(), F.dropout(x, inplace=True)][0],
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("grid", [(1, 1, 1), (1, 1, 8)])
def test_an_idiom_that_would_take_a_shard_for_the_whole(
    what: str, grid: tuple[int, int, int]
) -> None:
    def rank(shape: ProcessGrid) -> str:
        x = scatter(X, shape)
        try:
            found = REFUSED[what](x)
        except UnsupportedError as error:
            return str(error)
        return f"it gave {found}"

    sentences = set(on_grid(grid, rank))
    assert len(sentences) == 1, sentences
    assert "it gave" not in (sentence := sentences.pop()), sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "take",
    [scripted, torch.utils.dlpack.to_dlpack, lambda x: x.set_(ORDINARY), memoryview],
)
def test_what_torch_itself_refuses(take: Callable[[Any], Any]) -> None:
    """In C++, past torch's functions: there is no shard, and no memory."""

    def rank(grid: ProcessGrid) -> None:
        x = scatter(X, grid)
        with pytest.raises((RuntimeError, TypeError)):
            take(x)

    on_grid((1, 1, 2), rank)


def test_attributes_that_it_has_not_are_not_there() -> None:
    def rank(grid: ProcessGrid) -> list[bool]:
        x = scatter(X, grid)
        return [hasattr(x, name) for name in ("grad", "data", "nonsense", "shape", "local")]

    assert on_grid((1, 1, 2), rank) == [[False, False, False, True, True]] * 2


def test_what_is_printed_of_it_is_the_same_on_every_rank() -> None:
    for made in (str, repr, lambda x: f"{x}", lambda x: f"{x:>90}", lambda x: "%s" % x):  # noqa: UP031
        (text,) = set(on_grid((1, 2, 2), lambda grid, made=made: made(scatter(X, grid))))
        assert text.strip() == "SpatialTensor((2, 4, 6, 7), dims 2, 3 over 2 x 2 ranks)"
    assert on_grid((1, 1, 2), lambda grid: "local" in dir(scatter(X, grid))) == [True] * 2


def test_a_flattened_tensor_may_be_changed_where_nobody_looks_at_the_other() -> None:
    """As classifiers do it."""

    def head(x: Any) -> Tensor:
        return F.relu(torch.flatten(x * 1, 1), inplace=True)

    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):

        def rank(grid: ProcessGrid, mode: Any = mode) -> Tensor:
            with mode():
                return head(scatter(X, grid)).clone()

        for found in on_grid((1, 2, 2), rank):
            assert torch.equal(found, head(X))


def test_a_split_tensor_may_be_changed_once_its_copy_is_gone() -> None:
    def rank(grid: ProcessGrid) -> Tensor:
        x = scatter(X, grid)
        total = x.flatten(1).sum()
        return gather(x.relu_()) + total

    for found in on_grid((1, 2, 2), rank):
        torch.testing.assert_close(found, X.relu() + X.sum())


def test_a_frozen_tensor_goes_through_a_function() -> None:
    """Nothing is lost where there is no gradient."""

    def rank(grid: ProcessGrid) -> Tensor:
        with torch.no_grad():
            return gather(Doubled.apply(scatter(X, grid)))

    for found in on_grid((1, 2, 2), rank):
        assert torch.equal(found, X * 2)


def test_what_decorates_a_functions_forward_is_served_elsewhere() -> None:
    def rank(grid: ProcessGrid) -> Tensor:
        x = learnt(scatter(X, grid))
        with pytest.raises(UnsupportedError, match=r"within a torch\.autograd\.Function"):
            Decorated.apply(x)
        return gather(decorated(x))

    for found in on_grid((1, 2, 2), rank):
        assert torch.equal(found, X * 2)
