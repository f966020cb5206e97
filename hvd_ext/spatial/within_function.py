"""Whether what runs is within the forward of a torch.autograd.Function, which takes whole tensors.

`Function.apply` is Python in some releases of torch and C++ in others; `forward` is the user's own
and always a frame of Python.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

# By the id of a frame's code: the code, which is kept so that no other one gets its id.
_known: dict[int, tuple[CodeType, bool]] = {}


def within_function() -> bool:
    """Whether the caller was called by the forward of a torch.autograd.Function."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if _is_forward(frame.f_code):
            return True
    return False


def _is_forward(code: CodeType) -> bool:
    known = _known.get(id(code))
    if known is None:
        found = any(code is one for one in _forwards(torch.autograd.Function))
        known = _known[id(code)] = (code, found)
    return known[1]


def _forwards(function: Any) -> Iterator[CodeType | None]:
    """The forwards of all who inherit from a Function, without what decorates them."""
    for one in function.__subclasses__():
        yield getattr(inspect.unwrap(one.forward), "__code__", None)
        yield from _forwards(one)
