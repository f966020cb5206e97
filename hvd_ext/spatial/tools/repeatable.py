"""Models that draw random numbers, made to draw the same ones however they are split."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DROPOUTS = {
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout),
}
_DRAWS = {
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.bernoulli, torch.normal),
    *(torch.multinomial, Tensor.bernoulli, Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_),
    *(Tensor.exponential_, Tensor.random_, Tensor.geometric_, Tensor.multinomial),
}


class Repeatable(TorchFunctionMode):
    """On this thread, dropout is off, and other random numbers come from a generator of its own.

    Dropout's masks differ over space; what is drawn for whole samples or channels (stochastic
    depth) need not.

    Attributes:
        met: what was done to which functions, for the user to read.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self.met: set[str] = set()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function, or return the input of a dropout."""
        named = dict(kwargs or {})
        if function in _DROPOUTS:
            if named.get("training", True):
                self.met.add("dropout was off")
            return args[0] if args else named["input"]
        if named.get("dropout_p"):
            self.met.add("dropout was off")
            named["dropout_p"] = 0.0
        if function in _DRAWS and named.get("generator") is None:
            self.met.add("random layers drew alike")
            named["generator"] = self._generator
        return function(*args, **named)
