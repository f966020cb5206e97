"""Models that draw random numbers draw the same ones, however they are split."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hvd_ext.spatial.layers.operands import aligned
from hvd_ext.spatial.tensor import SpatialTensor

_DROPOUTS = {
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout),
}
_DRAWS = {
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.bernoulli, torch.normal),
    *(torch.multinomial, Tensor.bernoulli, Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_),
    *(Tensor.exponential_, Tensor.random_, Tensor.geometric_, Tensor.multinomial),
}
_LIKE: dict[Any, Callable[..., Tensor]] = {
    torch.rand_like: torch.rand,
    torch.randn_like: torch.randn,
}
_OFF, _ALIKE = "dropout was off", "random layers drew alike"


class _Generators(threading.local):
    """This thread's generators, if it has any."""

    python: random.Random | None = None
    numpy: np.random.RandomState | None = None
    met: set[str]


_own = _Generators()


class Repeatable(TorchFunctionMode):
    """On this thread, dropout is off, and other random numbers come from separate generators.

    Dropout's masks differ over space, but numbers for whole samples or channels (stochastic depth)
    can be equal. Numbers for every cell are drawn for the whole, and cut. Within `by_thread`,
    Python's and numpy's own random numbers belong to this thread.

    Attributes:
        met: functions that were changed, and how, for the user.
        rounding: rounding unit of the narrowest floating-point dtype that a function returned.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        self.met: set[str] = set()
        self.rounding = torch.finfo(torch.float64).eps

    def __enter__(self) -> Repeatable:
        """Give this thread its generators."""
        _own.python, _own.numpy = random.Random(self._seed), np.random.RandomState(self._seed)
        _own.met = self.met
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _own.python = _own.numpy = None

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function, or return the input of a dropout."""
        named = dict(kwargs or {})
        if function in _DROPOUTS:
            if named.get("training", True):
                self.met.add(_OFF)
            return args[0] if args else named["input"]
        if named.get("dropout_p"):
            self.met.add(_OFF)
            named["dropout_p"] = 0.0
        if function in _LIKE:
            self.met.add(_ALIKE)
            x = args[0] if args else named["input"]
            dtype = named.get("dtype") or x.dtype
            whole = _LIKE[function](tuple(x.shape), generator=self._generator, dtype=dtype)
            return x.like(aligned(whole, x).clone()) if isinstance(x, SpatialTensor) else whole
        if function in _DRAWS and named.get("generator") is None:
            self.met.add(_ALIKE)
            named["generator"] = self._generator
        result = function(*args, **named)
        if isinstance(result, Tensor) and result.is_floating_point():
            self.rounding = max(self.rounding, torch.finfo(result.dtype).eps)
        return result


@contextmanager
def by_thread() -> Iterator[None]:
    """Make `random.f()` and `numpy.random.f()` draw from the calling thread's generators.

    Emulated ranks are threads, which would draw from one generator in any order.
    """
    replaced: list[tuple[ModuleType, str, Callable[..., Any]]] = []
    for module, kind, mine in (
        (random, random.Random, lambda: _own.python),
        (np.random, np.random.RandomState, lambda: _own.numpy),
    ):
        for name in dir(kind):
            function = getattr(module, name, None)
            if not name.startswith("_") and callable(function):
                replaced.append((module, name, function))
                setattr(module, name, _drawing(name, function, mine))
    try:
        yield
    finally:
        for module, name, function in replaced:
            setattr(module, name, function)


def _drawing(name: str, shared: Callable[..., Any], mine: Callable[[], Any]) -> Callable[..., Any]:
    def draw(*args: Any, **options: Any) -> Any:
        generator = mine()
        if generator is None:
            return shared(*args, **options)
        _own.met.add(_ALIKE)
        return getattr(generator, name)(*args, **options)

    return draw
