"""The partitioned tensor, and the one list of operations that accept it.

For `isinstance` it is a torch.Tensor. It has the shape of the whole and no memory, so nothing can
use a shard as the whole by mistake: torch passes every function that is called with one to
`__torch_function__`, which refuses functions that are not on the list. Calls that bypass it, in
C++, reach `__torch_dispatch__`, which refuses everything. Ordinary modules work unchanged:
`nn.Conv2d(...)(x)` calls `torch.conv2d`, which is on the list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from hvd_ext.spatial.copies import Copies
from hvd_ext.spatial.geometry.partition import coordinates_of, lengths, shard
from hvd_ext.spatial.grid import ProcessGrid
from hvd_ext.spatial.torch_internals import (
    NeverParameter,
    is_view,
    tensor_without_memory,
    within_function,
)
from hvd_ext.spatial.unsupported import UnsupportedError, name_of
from hvd_ext.units import plural

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Operation:
    """The implementation that runs when a function of torch is called with a SpatialTensor.

    Attributes:
        run: takes the function's arguments.
        any_operand: whether any operand may be the split one, not only the first.
    """

    run: Callable[..., Any]
    any_operand: bool


OPERATIONS: dict[Any, Operation] = {}


def implements(*functions: Any, any_operand: bool = False) -> Callable[[F], F]:
    """Put functions of torch on the list, with their implementation."""

    def register(handler: F) -> F:
        for function in functions:
            OPERATIONS[function] = Operation(handler, any_operand)
        return handler

    return register


# NumPy's names, which torch also accepts.
_ALIASES = {"axis": "dim", "keepdims": "keepdim"}


class _NoAttribute(UnsupportedError, AttributeError):
    """An error that hasattr() recognizes."""


class SpatialTensor(NeverParameter, Tensor):
    """This rank's shard of a tensor of which some dims are split over a grid.

    Its space is a range of dims: the split ones, in the order of the grid's axes, and others
    between and next to them. A dim that one rank has whole is not split, wherever it is.

    Attributes:
        local: the shard, an ordinary tensor. Its gradient is this shard's part of the whole
            gradient.
        grid: arrangement of the ranks.
        extents: global extents of the dims of the space.
        behind: number of dims after them: 0, except for permuted tensors.
        parts: ranks along each dim of the space; by default the last axes of the grid.
        place: this rank's place among them.
        box: the block of the whole that this rank owns, as [begin, end) per dim of the space.
        copies: copies of its cells that torch would have returned as views.
    """

    local: Tensor
    grid: ProcessGrid
    extents: tuple[int, ...]
    behind: int
    parts: tuple[int, ...]
    place: tuple[int, ...]
    box: tuple[tuple[int, int], ...]
    copies: Copies

    @staticmethod
    def __new__(
        cls,
        local: Tensor,
        grid: ProcessGrid,
        extents: Iterable[int],
        behind: int = 0,
        parts: tuple[int, ...] | None = None,
    ) -> SpatialTensor:
        """Take `local` as the shard that the canonical partition gives this rank.

        Raises:
            UnsupportedError: it does not have the shape of that shard.
        """
        extents = tuple(extents)
        dims = len(extents)
        parts = grid.shape.parts(dims) if parts is None else parts
        place = coordinates_of(parts, grid.space.rank)
        box = shard(extents, parts, place)
        own = lengths(box)
        sizes = tuple(local.shape)
        first = local.ndim - dims - behind
        if first < 0 or sizes[first : first + dims] != own:
            raise UnsupportedError(
                f"a shard of shape {tuple(local.shape)}: of extents {extents} on a grid of "
                f"{grid.shape}, the rank at {place} owns {box}"
            )
        shape = (*sizes[:first], *extents, *sizes[first + dims :])
        made: SpatialTensor = tensor_without_memory(cls, shape, local)
        made.local, made.grid, made.extents, made.behind = local, grid, extents, behind
        made.parts, made.place, made.box, made.copies = parts, place, box, Copies()
        return made

    @property
    def lead(self) -> tuple[int, ...]:
        """Return the sizes of the dims before the space: (N, C), or (N,) for labels."""
        return tuple(self.local.shape[: self.local.ndim - len(self.extents) - self.behind])

    @property
    def trail(self) -> tuple[int, ...]:
        """Return the sizes of the dims after the space: (C,) for a permuted tensor."""
        return tuple(self.local.shape[self.local.ndim - self.behind :])

    # torch's own property would go through __torch_function__, which takes much of a small layer's
    # time.
    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """Global shape."""
        return torch.Size((*self.lead, *self.extents, *self.trail))

    @property
    def split_dims(self) -> tuple[int, ...]:
        """Return the dims of which each rank has a part; all others are whole on every rank."""
        first = len(self.lead)
        return tuple(first + at for at, parts in enumerate(self.parts) if parts > 1)

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return self.local.ndim

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.local.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.local.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.local.is_cuda

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through it; the same on all ranks."""
        return self.local.requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.local.requires_grad = wanted

    def refuse_parameter(self) -> NoReturn:
        """Raise that a split tensor cannot be a parameter."""
        raise UnsupportedError("nn.Parameter of a split tensor: parameters are whole on every rank")

    def size(self, dim: int | None = None) -> Any:
        """Return the global shape, or one dim of it.

        Args:
            dim: number of the dim; None for the whole shape.
        """
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dims."""
        return self.ndim

    def like(self, local: Tensor, behind: int | None = None) -> SpatialTensor:
        """Return a tensor split alike, of which `local` is this rank's shard.

        Args:
            local: shard with the same dims in its space; unsplit dims may have any size.
            behind: number of its dims after the space, if it differs.
        """
        behind = self.behind if behind is None else behind
        extents = self.extents
        if local.shape != self.local.shape or behind != self.behind:
            space = local.shape[local.ndim - len(extents) - behind : local.ndim - behind]
            pairs = zip(extents, space, self.parts, strict=True)
            extents = tuple(extent if parts > 1 else size for extent, size, parts in pairs)
        return self.same_memory(SpatialTensor(local, self.grid, extents, behind, self.parts))

    def same_memory(self, made: SpatialTensor) -> SpatialTensor:
        """Let a tensor that was made from this one share its copies, if its shard is a view.

        Args:
            made: the tensor.

        Returns:
            `made`.
        """
        if made.local is self.local or is_view(made.local):
            made.copies = self.copies
        return made

    def gather(self, *arguments: Any, **options: Any) -> Tensor:
        """Return the whole tensor, replicated; see `hvd_ext.spatial.gather`.

        Args:
            arguments: none; torch's own `gather` raises an error.
            options: none.
        """
        if arguments or options:
            refuse(Tensor.gather)
        gathered: Tensor = OPERATIONS["gather"].run(self)
        return gathered

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation that is on the list, or refuse the function."""
        operation = OPERATIONS.get(function)
        if operation is None:
            refuse(function)
        named = {_ALIASES.get(name, name): value for name, value in (kwargs or {}).items()}
        if "input" in named:
            args = (named.pop("input"), *args)
        if not operation.any_operand and not isinstance(args[0], SpatialTensor):
            raise UnsupportedError(
                f"{name_of(function)}: an argument is split over ranks, but the tensor of shape "
                f"{tuple(getattr(args[0], 'shape', ()))} that it is called with is not: scatter "
                "it: hvd_ext.spatial.scatter(x, grid)"
            )
        tensors = list(_tensors((*args, *named.values())))
        if not torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            _refuse_within_function(function, tensors)
        for x in tensors:
            if isinstance(x, SpatialTensor):
                x.copies.check(function)
        try:
            return operation.run(*args, **named)
        except TypeError as error:
            raise UnsupportedError(f"{name_of(function)}: {_first_line(error)}") from error

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """Refuse calls that bypass `__torch_function__`, because there is no memory to work on."""
        refuse(function)

    def __repr__(self) -> str:  # type: ignore[override]
        # The same on every rank: it stands in refusals.
        if not (split := self.split_dims):
            return f"SpatialTensor({tuple(self.shape)}, on one rank)"
        dims = f"{plural(len(split), 'dim')} {', '.join(map(str, split))}"
        over = " x ".join(str(parts) for parts in self.parts if parts > 1)
        return f"SpatialTensor({tuple(self.shape)}, {dims} over {over} ranks)"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __dir__(self) -> Iterable[str]:
        return object.__dir__(self)


def refuse(function: Any) -> NoReturn:
    """Raise the error for a function of torch that is not on the list.

    Raises:
        UnsupportedError: always; also an AttributeError if the function reads an attribute.
    """
    name = name_of(function)
    if name.endswith(".__get__"):
        raise _NoAttribute(
            f"{name.removesuffix('.__get__')} of a tensor that is split over ranks: gather it first"
        )
    raise UnsupportedError(
        f"{name} does not support tensors that are split over ranks: use an operation that does "
        "(docs/reference/models.md lists them), or gather first: hvd_ext.spatial.gather(x)"
    )


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Return the tensors in arguments, and in lists among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _refuse_within_function(function: Any, tensors: Sequence[Tensor]) -> None:
    """Refuse operations within a torch.autograd.Function, which works only on whole tensors.

    Its forward runs without gradients, and its backward would not be called. A reentrant checkpoint
    is such a function. If a forward returns its input, torch calls view_as on it.
    """
    as_itself = function is Tensor.view_as and tensors[0] is tensors[-1]
    if as_itself or within_function():
        raise UnsupportedError(
            f"{name_of(function)} within a torch.autograd.Function, which would lose the "
            "gradients of split tensors: use torch's own functions; for torch.utils.checkpoint "
            "use_reentrant=False"
        )


@functools.lru_cache(maxsize=4096)
def global_shape(
    function: Callable[..., Tensor], shapes: tuple[tuple[int, ...] | None, ...], options: Any
) -> tuple[int, ...]:
    """Compute torch's output shape from the global shapes; the same, or an error, on all ranks.

    Args:
        function: one of torch's functions.
        shapes: shapes of the tensors that are its first arguments.
        options: the rest of its arguments, in order.

    Raises:
        UnsupportedError: torch would not accept them.
    """
    tensors = [None if shape is None else torch.empty(shape, device="meta") for shape in shapes]
    try:
        return tuple(function(*tensors, *options).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UnsupportedError(f"{name_of(function)}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
