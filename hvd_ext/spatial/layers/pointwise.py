"""Operations on single cells, which run on the shard unchanged.

The list is explicit, because other functions may read neighbors; they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.exchange.replicated import to_partitioned
from hvd_ext.spatial.layers.operands import first, over, same, shard_of, unsplit
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.unsupported import UnsupportedError, name_of

# Names of functions of torch and torch.nn.functional, and of methods of Tensor.
ELEMENTWISE = (
    *("relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "selu", "celu"),
    *("gelu", "silu", "mish", "sigmoid", "sigmoid_", "logsigmoid", "hardsigmoid", "hardswish"),
    *("hardtanh", "hardtanh_", "softplus", "softsign", "tanh", "tanh_", "tanhshrink"),
    *("hardshrink", "softshrink", "threshold", "threshold_", "abs", "abs_", "neg", "neg_"),
    *("negative", "exp", "exp_", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"),
    *("square", "reciprocal", "sin", "cos", "erf", "floor", "ceil", "round", "sign", "clamp"),
    *("clamp_", "clamp_min", "clamp_max", "clip", "pow", "isnan", "isinf", "isfinite"),
    *(
        "logical_not",
        "channel_shuffle",
        "bitwise_not",
        "positive",
        "nan_to_num",
        "clone",
        "detach",
        "zeros_like",
        "ones_like",
    ),
    *("float", "double", "half", "bfloat16", "long", "int", "bool", "cpu"),
    *("cuda", "requires_grad_", "__neg__", "__pos__", "__abs__", "__invert__"),
)
# Two operands, or three: each a partitioned tensor, a replicated one or a number.
BROADCAST = (
    *("add", "add_", "sub", "sub_", "subtract", "mul", "mul_", "multiply", "div", "div_"),
    *("divide", "true_divide", "maximum", "minimum", "where", "lerp", "addcmul", "addcdiv"),
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"),
    *("__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__"),
    *("__rmul__", "__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__pow__"),
    *("__rpow__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "rsub"),
    *("__and__", "__or__", "__xor__", "masked_fill", "fmod", "remainder", "atan2", "hypot"),
    *("__ipow__", "pow_", "__floordiv__", "__rfloordiv__", "floor_divide", "__rmod__"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "masked_fill_", "addcmul_", "addcdiv_"),
)

IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__iand__", "__ior__")


def _functions(names: tuple[str, ...]) -> set[Any]:
    homes = (torch, F, Tensor)
    found = {getattr(home, name, None) for name in names for home in homes}
    return {function for function in found if callable(function) and not isinstance(function, type)}


def _local(function: Any) -> Any:
    name = function.__name__
    in_place = name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))

    def handler(*operands: Any, **options: Any) -> Any:
        x = first((*operands, *options.values()))
        changed = operands[0] if in_place or options.get("inplace") else options.get("out")
        if isinstance(changed, SpatialTensor):
            changed.copies.refuse_change(function)
        elif changed is not None:
            raise UnsupportedError(
                f"{name_of(function)} into a replicated tensor of shape {tuple(changed.shape)}, of "
                "which each rank would change only its part: make a new tensor instead"
            )
        values = [shard_of(function, operand, x) for operand in operands]
        named = {name: shard_of(function, value, x) for name, value in options.items()}
        result = function(*values, **named)
        if result is NotImplemented:
            # Python handles NotImplemented of operators.
            return result
        if not isinstance(result, Tensor):
            raise UnsupportedError(
                f"{name_of(function)} of {x!r} alone: its result is not a tensor of that shape"
            )
        return same(x if changed is None else changed, result)

    return handler


for _function in _functions(ELEMENTWISE) | _functions(BROADCAST):
    implements(_function, any_operand=True)(_local(_function))


@implements(F.prelu, torch.prelu)
def prelu(x: SpatialTensor, weight: Tensor) -> SpatialTensor:
    """Apply prelu, whose slope is a parameter: a single one, or one per channel."""
    if x.ndim > 1:
        unsplit(x, 1, "prelu")
    return x.like(F.prelu(x.local, to_partitioned(weight, x.grid.space)))


def _cast(function: Any) -> Any:
    def handler(x: SpatialTensor | Tensor, *args: Any, **options: Any) -> SpatialTensor | Tensor:
        # Only the dtype and the device of the other tensor are read, and its shard has the same.
        values = [value.local if isinstance(value, SpatialTensor) else value for value in args]
        if isinstance(x, SpatialTensor):
            return same(x, function(x.local, *values, **options))
        cast: Tensor = function(x, *values, **options)
        return cast

    return handler


for _function in (Tensor.to, Tensor.type_as):
    implements(_function, any_operand=True)(_cast(_function))


@implements(F.dropout)
def dropout(
    x: SpatialTensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> SpatialTensor:
    """Apply dropout with a separate mask for each shard.

    The mask's seed is made of this rank's place and a number of torch's own generator, which the
    ranks of a space group seed alike. So the mask is reproducible, also when activation
    checkpointing recomputes.
    """
    return _dropped(x, x.local.shape, x.grid.space.rank, p, training, inplace)


@implements(F.dropout1d, F.dropout2d, F.dropout3d)
def dropout_channels(
    x: SpatialTensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> SpatialTensor:
    """Unsplit channels are dropped, so all ranks of a space group draw the same mask."""
    x = over(x, x.ndim - 2, "dropout of channels")
    return _dropped(x, (*x.lead, *(1 for _ in x.extents)), 0, p, training, inplace)


def _drawn(draw: Any) -> Any:
    def handler(
        x: SpatialTensor, *, dtype: torch.dtype | None = None, requires_grad: bool = False
    ) -> SpatialTensor:
        generator = _generator(x, x.grid.space.rank)
        local: Tensor = draw(
            x.local.shape, generator=generator, dtype=dtype or x.dtype, device=x.device
        )
        return x.like(local.requires_grad_(requires_grad))

    return handler


# Drawn like dropout's masks.
implements(torch.rand_like)(_drawn(torch.rand))
implements(torch.randn_like)(_drawn(torch.randn))


def _generator(x: SpatialTensor, place: int) -> torch.Generator:
    """Return a generator that is the same on ranks of the same `place`."""
    seed = int(torch.randint(2**62, ()).item())
    return torch.Generator(device=x.device).manual_seed(seed + place)


def _dropped(
    x: SpatialTensor, shape: Sequence[int], place: int, p: float, training: bool, inplace: bool
) -> SpatialTensor:
    """Multiply by a mask of `shape`, the same on ranks of the same `place`."""
    if not 0 <= p <= 1:
        raise UnsupportedError(f"dropout with p={p}: a probability is between 0 and 1")
    if not training or p == 0:
        return x
    drawn = torch.rand(shape, generator=_generator(x, place), device=x.device)
    # p = 1 keeps nothing; kept values are scaled up.
    mask = (drawn >= p).to(x.dtype) / max(1 - p, torch.finfo(x.dtype).tiny)
    if not inplace:
        return x.like(x.local * mask)
    x.copies.refuse_change(F.dropout)
    x.local.mul_(mask)
    return x
