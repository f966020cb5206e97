"""Matrix products and einsum: split dims are kept, side by side, or all of them are summed."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial.dtypes import accumulate_dtype
from hvd_ext.spatial.exchange.replicated import sum_over_space, to_partitioned, to_replicated
from hvd_ext.spatial.layers.operands import along, first, placed
from hvd_ext.spatial.tensor import SpatialTensor, global_shape, implements
from hvd_ext.spatial.unsupported import UnsupportedError, name_of

Operand = SpatialTensor | Tensor


def _einsum(*given: Any) -> Tensor:
    """Take the equation last, as `global_shape` passes it."""
    return torch.einsum(given[-1], *given[:-1])


_einsum.__qualname__ = "torch.einsum"


@implements(torch.einsum, any_operand=True)
def einsum(equation: str, *given: Any) -> SpatialTensor | Tensor:
    """Like torch's, with an equation; operands may be split or whole."""
    operands: list[Operand] = list(
        given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    )
    if not isinstance(equation, str):
        raise UnsupportedError("torch.einsum of lists of dims: write the equation as a string")
    global_shape(_einsum, tuple(tuple(one.shape) for one in operands), (equation,))
    terms, output = _spelt_out(equation.replace(" ", ""), [one.ndim for one in operands])
    return _contracted(
        f"einsum {equation!r}", terms, output, operands, lambda *own: torch.einsum(equation, *own)
    )


def _spelt_out(equation: str, ndims: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of all operands' dims and of the result's; expands dots."""
    inside, arrow, output = equation.partition("->")
    terms = inside.split(",")
    free = [letter for letter in string.ascii_letters if letter not in equation]
    counts = [
        ndim - len(term.replace("...", "")) if "..." in term else 0
        for term, ndim in zip(terms, ndims, strict=True)
    ]
    dots = "".join(free[: max(counts)])
    if not arrow:
        letters = sorted(set(inside) - {",", "."})
        output = "..." + "".join(letter for letter in letters if inside.count(letter) == 1)
    spelt = [
        term.replace("...", dots[len(dots) - count :])
        for term, count in zip(terms, counts, strict=True)
    ]
    return spelt, output.replace("...", dots)


def _matmul(function: Any) -> Any:
    def handler(a: Operand, b: Operand) -> SpatialTensor | Tensor:
        left, right = (b, a) if function is Tensor.__rmatmul__ else (a, b)
        product = torch.matmul if function is Tensor.__rmatmul__ else function
        if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
            raise UnsupportedError(f"{name_of(function)} of a tensor with a {type(b).__name__}")
        global_shape(product, (tuple(left.shape), tuple(right.shape)), ())
        # In einsum's notation: N K times K M, after any number of batch dims.
        batch = string.ascii_lowercase[: max(left.ndim, right.ndim, 2) - 2]
        terms = [
            (batch[len(batch) + 2 - one.ndim :] + matrix if one.ndim > 1 else "K")
            for one, matrix in ((left, "NK"), (right, "KM"))
        ]
        output = batch + "N" * (left.ndim > 1) + "M" * (right.ndim > 1)
        return _contracted(name_of(function), terms, output, [left, right], product)

    return handler


for _function in (
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__),
    *(torch.bmm, Tensor.bmm),
):
    implements(_function, any_operand=True)(_matmul(_function))


def _contracted(
    what: str,
    terms: Sequence[str],
    output: str,
    operands: Sequence[Operand],
    compute: Callable[..., Tensor],
) -> SpatialTensor | Tensor:
    """Return the result of `compute` on the shards, if it is a shard or a part of the whole sum.

    Args:
        what: name of the operation, for refusals.
        terms: a letter for each dim of each operand.
        output: a letter for each dim of the result.
        operands: split alike, or whole on every rank.
        compute: takes the operands.

    Raises:
        UnsupportedError: a split dim is paired with another dim, or split dims are separated.
    """
    x = first(operands)
    space = x.grid.space
    split = ""
    for term, one in zip(terms, operands, strict=True):
        if not isinstance(one, SpatialTensor):
            continue
        mine = "".join(term[dim] for dim in one.split_dims)
        split = split or mine
        once = all(term.count(letter) == 1 for letter in split)
        if one.grid is not x.grid or _extents(one) != _extents(x) or mine != split or not once:
            raise UnsupportedError(
                f"{what} of {x!r} and {one!r}: a split dim must pair with the "
                "same dim of the other operand: permute one of them, or gather() it"
            )
    kept = "".join(letter for letter in output if letter in split)
    if kept not in ("", split):
        raise UnsupportedError(
            f"{what} of {x!r}: split dims are either kept, in their order, or all summed over"
        )
    made = compute(
        *(
            one.local if isinstance(one, SpatialTensor) else _beside(one, term, split, x)
            for term, one in zip(terms, operands, strict=True)
        )
    )
    if kept or not split:
        term = terms[[one is x for one in operands].index(True)]
        dims = dict(zip(term, along(x), strict=True))
        return placed(x, made, [dims.get(letter) for letter in output])
    partial = to_replicated(made.to(accumulate_dtype(made.dtype)), space)
    return sum_over_space(partial, space).to(made.dtype)


def _extents(x: SpatialTensor) -> list[int]:
    """Return the global extents of the split dims."""
    return [x.shape[dim] for dim in x.split_dims]


def _beside(whole: Tensor, term: str, split: str, x: SpatialTensor) -> Tensor:
    """Return the part of a whole operand that belongs to this rank's shard."""
    entered = to_partitioned(whole, x.grid.space)
    for letter, at in zip(split, (dim - len(x.lead) for dim in x.split_dims), strict=True):
        extent, (begin, end) = x.extents[at], x.box[at]
        for dim, other in enumerate(term):
            if other == letter and whole.shape[dim] == extent:
                entered = entered.narrow(dim, begin, end - begin)
    return entered
