"""The partitioned tensor, and the one list of operations that know it.

It is not a torch.Tensor, so nothing can take a shard for the whole by mistake: torch hands
every function that is called with one to `__torch_function__`, and what is not on the
list is refused. Ordinary modules take it as it is: `nn.Conv2d(...)(x)` ends up in
`torch.conv2d`, which is on the list.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
import torch.overrides
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from hvd_ext.spatial.geometry.partition import lengths, shard
from hvd_ext.spatial.grid import ProcessGrid
from hvd_ext.spatial.unsupported import UnsupportedError

F = TypeVar("F", bound=Callable[..., Any])

HANDLERS: dict[Any, Callable[..., Any]] = {}


def implements(*functions: Any) -> Callable[[F], F]:
    """Put a function on the list, as what runs when one of torch's meets a SpatialTensor."""

    def register(handler: F) -> F:
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register


# NumPy's names, which torch takes too.
_ALIASES = {"axis": "dim", "keepdims": "keepdim"}


class _NoAttribute(UnsupportedError, AttributeError):
    """What hasattr() understands."""


class SpatialTensor:
    """This rank's shard of a tensor whose last dims are split over a grid.

    Attributes:
        local: the shard, an ordinary tensor. Its gradient is this shard's part of the
            whole gradient.
        grid: how ranks are arranged.
        extents: global extents of the split dims, which are the last ones.
        parts: ranks along each split dim.
        box: the block of the whole that this rank owns, as [begin, end) per split dim.
    """

    def __init__(self, local: Tensor, grid: ProcessGrid, extents: Iterable[int]) -> None:
        """Take `local` as the shard that the canonical partition gives this rank.

        Raises:
            UnsupportedError: it has another shape than that.
        """
        self.local = local
        self.grid = grid
        self.extents = tuple(extents)
        dims = len(self.extents)
        self.parts = grid.shape.parts(dims)
        self.box = shard(self.extents, self.parts, grid.coordinates(dims))
        own = lengths(self.box)
        if local.ndim < len(own) or tuple(local.shape[local.ndim - len(own) :]) != own:
            raise UnsupportedError(
                f"a shard of shape {tuple(local.shape)}: of extents {self.extents} on a grid of "
                f"{grid.shape}, the rank at {grid.coordinates(len(own))} owns {self.box}"
            )

    @property
    def lead(self) -> tuple[int, ...]:
        """Sizes of the dims that are not split: (N, C), or (N,) of labels."""
        return tuple(self.local.shape[: self.local.ndim - len(self.extents)])

    @property
    def shape(self) -> torch.Size:
        """Global shape."""
        return torch.Size((*self.lead, *self.extents))

    @property
    def ndim(self) -> int:
        return self.local.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.local.dtype

    @property
    def device(self) -> torch.device:
        return self.local.device

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through it; the same on all ranks."""
        return self.local.requires_grad

    @property
    def is_cuda(self) -> bool:
        return self.local.is_cuda

    def size(self, dim: int | None = None) -> Any:
        """Global shape, or one dim of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Number of dims."""
        return self.ndim

    def numel(self) -> int:
        """Number of elements of the whole."""
        return self.shape.numel()

    def like(self, local: Tensor) -> SpatialTensor:
        """Another tensor of the same extents, of which `local` is this rank's shard."""
        return SpatialTensor(local, self.grid, self.extents)

    def gather(self) -> Tensor:
        """The whole, replicated; see `hvd_ext.spatial.gather`."""
        gathered: Tensor = HANDLERS["gather"](self)
        return gathered

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the handler of a function, or refuse it."""
        handler = HANDLERS.get(function)
        if handler is None:
            raise UnsupportedError(
                f"{name_of(function)} does not support tensors that are split over ranks: "
                "use an operation that does (docs/spatial.md lists them), or gather first: "
                "hvd_ext.spatial.gather(x)"
            )
        if not torch.is_grad_enabled() and _in_reentrant_checkpoint():
            raise UnsupportedError(
                f"{name_of(function)} under torch.utils.checkpoint with use_reentrant=True, which "
                "would lose the gradients of split tensors: use use_reentrant=False"
            )
        named = {_ALIASES.get(name, name): value for name, value in (kwargs or {}).items()}
        if "input" in named:
            args = (named.pop("input"), *args)
        try:
            return handler(*args, **named)
        except TypeError as error:
            raise UnsupportedError(f"{name_of(function)}: {_first_line(error)}") from error

    def __getattr__(self, name: str) -> Any:
        method = getattr(Tensor, name, None)
        if name.startswith("__") or method is None:
            raise AttributeError(f"SpatialTensor has no attribute {name!r}")
        if not callable(method):
            raise _NoAttribute(
                f"Tensor.{name} of a tensor that is split over ranks: gather it first"
            )

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.__torch_function__(method, (SpatialTensor,), (self, *args), kwargs)

        return call

    def __getitem__(self, index: Any) -> Any:
        return self.__torch_function__(Tensor.__getitem__, (SpatialTensor,), (self, index))

    def __repr__(self) -> str:
        # The same on every rank: it stands in refusals.
        over = " x ".join(map(str, self.parts))
        return (
            f"SpatialTensor({tuple(self.shape)}, last {len(self.extents)} dims over {over} ranks)"
        )


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)

    def operator(self: SpatialTensor, *others: Any) -> Any:
        return self.__torch_function__(function, (SpatialTensor,), (self, *others))

    return operator


# Python looks up operators on the type, past __getattr__.
for _name in (
    *("add", "sub", "mul", "truediv", "pow", "radd", "rsub", "rmul", "rtruediv", "rpow"),
    *("iadd", "isub", "imul", "itruediv", "neg", "pos", "abs", "matmul", "floordiv", "mod"),
    *("lt", "le", "gt", "ge", "eq", "ne", "len", "iter", "bool", "float", "int", "invert"),
    *("and", "or", "xor", "setitem", "contains"),
):
    setattr(SpatialTensor, f"__{_name}__", _operator(f"__{_name}__"))
# Compared element by element, hashed by identity: as torch's own tensors.
SpatialTensor.__hash__ = object.__hash__  # type: ignore[method-assign]


def _in_reentrant_checkpoint() -> bool:
    """Whether a caller is torch's checkpoint that sees tensors only, and not these."""
    wanted = CheckpointFunction.forward.__code__
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is wanted:
            return True
    return False


def name_of(function: Any) -> str:
    """The public name of a function of torch."""
    name = torch.overrides.resolve_name(function) or getattr(function, "__qualname__", "")
    return str(name or function)


@functools.lru_cache(maxsize=4096)
def global_shape(
    function: Callable[..., Tensor], shapes: tuple[tuple[int, ...] | None, ...], options: Any
) -> tuple[int, ...]:
    """What torch makes of the global shapes: the output's, or its error, the same on all ranks.

    Args:
        function: one of torch's.
        shapes: of the tensors that it takes first.
        options: the rest of its arguments, in order.

    Raises:
        UnsupportedError: torch would not take them.
    """
    tensors = [None if shape is None else torch.empty(shape, device="meta") for shape in shapes]
    try:
        return tuple(function(*tensors, *options).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UnsupportedError(f"{name_of(function)}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to sum `dtype` in: fp16 sums overflow, and bf16 sums stop growing."""
    return torch.promote_types(dtype, torch.float32)


def result_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of a convolution of `tensor`, autocast included."""
    kind = tensor.device.type
    if kind == "meta" or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor.dtype
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


def check_dtype(what: str, x: SpatialTensor, weight: Tensor) -> None:
    """Refuse a weight of another dtype, which torch would on ranks that have cells alone."""
    if weight.dtype != x.dtype and result_dtype(weight) != result_dtype(x.local):
        raise UnsupportedError(
            f"{what} of {x.dtype} with a weight of {weight.dtype}: they must be the same"
        )
