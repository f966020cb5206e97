"""Mistakes made on purpose: a function of the product with a line of its source changed."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

import pytest


def mutate(patch: pytest.MonkeyPatch, where: Any, name: str, line: str, other: str) -> None:
    """Have a function, method of `where`, behave as if `line` in it read `other`."""
    function = getattr(where, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(line) == 1, f"{name} has no such line any more: {line}"
    made: dict[str, Any] = {}
    known = vars(sys.modules[function.__module__])
    exec(compile(source.replace(line, other), f"<{name}, changed>", "exec"), known, made)
    # In place: who has the function already has the mistake too.
    patch.setattr(function, "__code__", made[name].__code__)
