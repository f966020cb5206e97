"""What a package exports says what it is for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import pytest

PACKAGES = ("hvd_ext.allreduce", "hvd_ext.data", "hvd_ext.spatial", "hvprof")
OVERRIDES = (
    *("DistributedOptimizer", "broadcast_optimizer_state", "broadcast_parameters", "init", "join"),
    *("plan_allreduce", "shutdown"),
)


def exported() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for name in importlib.import_module(package).__all__:
            yield package, name
    for name in OVERRIDES:
        yield "hvd_ext.torch", name


@pytest.mark.parametrize(("package", "name"), list(exported()), ids="/".join)
def test_an_exported_name_has_a_docstring(package: str, name: str) -> None:
    thing = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return
    assert thing.__doc__, f"{package}.{name} has no docstring"
    for member, function in vars(thing).items() if inspect.isclass(thing) else ():
        if inspect.isfunction(function) and not member.startswith("_"):
            assert function.__doc__, f"{package}.{name}.{member} has no docstring"
