"""Operations that reduce, order or scale along unsplit dims: each cell of space by itself.

A reduction over all split dims is that of `over_space`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hvd_ext.spatial.layers.operands import reduced, unsplit
from hvd_ext.spatial.layers.reducing.over_space import OVER_SPACE, covers, dims_of
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.unsupported import UnsupportedError, name_of

# The position of the dim, or dims, among the arguments after the tensor.
DIM_IS = {
    0: (
        *("amax", "amin", "max", "min", "argmax", "argmin", "std", "var", "std_mean", "var_mean"),
        *("prod", "all", "any", "logsumexp", "softmax", "log_softmax", "cumsum", "cumprod"),
        *("median", "sort", "argsort", "flip", "aminmax", "index_select", "glu"),
    ),
    1: ("norm", "normalize", "topk", "roll", "repeat_interleave"),
}
_DEFAULTS: dict[Any, Any] = {F.normalize: 1, F.glu: -1}
_TRANSFORMS: dict[Any, tuple[str, ...]] = {
    -1: ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"),
    (-2, -1): ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"),
}


def _handler(function: Any, place: int) -> Any:
    name = name_of(function)
    over_all = OVER_SPACE.get(name.rpartition(".")[2])

    def handler(x: SpatialTensor, *args: Any, **options: Any) -> Any:
        if args and isinstance(args[0], Tensor) and name.endswith((".max", ".min")):
            # Operations on two tensors, element by element.
            return (torch.maximum if name.endswith("max") else torch.minimum)(x, args[0])
        asked = options.get("dim", options.get("dims"))
        if asked is None and len(args) > place:
            asked = args if function is Tensor.flip and isinstance(args[0], int) else args[place]
        asked = _DEFAULTS.get(function) if asked is None else asked
        if over_all and (asked is None or isinstance(asked, bool) or covers(x, dims_of(x, asked))):
            # torch.norm fills in arguments that were not given.
            given = {key: value for key, value in options.items() if value is not None}
            return over_all(x, *args, **given)
        dims = asked if isinstance(asked, list | tuple) else (asked,)
        if not dims or not all(isinstance(dim, int) and not isinstance(dim, bool) for dim in dims):
            raise UnsupportedError(f"{name} of {x!r} without a dim: name dims that are not split")
        for dim in dims:
            unsplit(x, dim, name)
        result = function(x.local, *args, **options)
        if isinstance(result, Tensor):
            return reduced(x, result, dims)
        return type(result)([reduced(x, part, dims) for part in result])

    return handler


for _place, _names in DIM_IS.items():
    for _name in _names:
        for _home in (torch, F, Tensor):
            _function = getattr(_home, _name, None)
            if _function is not None:
                implements(_function)(_handler(_function, _place))
for _last, _names in _TRANSFORMS.items():
    for _name in _names:
        _function = getattr(torch.fft, _name)
        if not _name.endswith("n"):
            _DEFAULTS[_function] = _last
        implements(_function)(_handler(_function, 1))
for _function in (torch.fft.fftshift, torch.fft.ifftshift):
    implements(_function)(_handler(_function, 0))
implements(torch.linalg.vector_norm)(_handler(torch.linalg.vector_norm, 1))
