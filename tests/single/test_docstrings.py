"""Docstrings of the API reference: every parameter, and what a call returns; examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.ranks import ROOT

PACKAGES = (
    *("hvd_ext", "hvd_ext.allreduce", "hvd_ext.c10d", "hvd_ext.data", "hvd_ext.spatial"),
    *("hvd_ext.torch", "hvprof"),
)
# Named by Python or by the interface that they belong to.
USUAL = {"self", "cls", "args", "kwargs"}


def functions() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Name, function and docstring of each public function, constructor and method."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in public(module):
            thing = getattr(module, name)
            if inspect.isfunction(thing):
                yield f"{package}.{name}", thing, thing.__doc__ or ""
            elif inspect.isclass(thing):
                yield from of_class(f"{package}.{name}", thing)


def public(module: Any) -> list[str]:
    """The names of a package; those that hvd_ext.torch takes from Horovod are Horovod's."""
    return [
        name
        for name in module.__all__
        if getattr(getattr(module, name), "__module__", "").startswith(("hvd_ext", "hvprof"))
    ]


def of_class(name: str, thing: type) -> Iterator[tuple[str, Callable[..., Any], str]]:
    for member, value in vars(thing).items():
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if not inspect.isfunction(function):
            continue
        if member == "__init__":
            if getattr(thing, "_is_protocol", False):
                continue
            yield name, function, f"{thing.__doc__}\n{function.__doc__}"
        elif not member.startswith("_"):
            yield f"{name}.{member}", function, function.__doc__ or ""


FUNCTIONS = list(functions())


def described(text: str) -> set[str]:
    """Parameters and attributes that a docstring describes."""
    return {
        name
        for line in re.findall(r"^\s+((?:\*{0,2}\w+(?:, )?)+)(?: \(.*\))?:(?:\s|$)", text, re.M)
        for name in line.replace("*", "").split(", ")
    }


@pytest.mark.parametrize(("name", "function", "text"), FUNCTIONS, ids=[n for n, _, _ in FUNCTIONS])
def test_every_parameter_is_described(name: str, function: Callable[..., Any], text: str) -> None:
    if re.search(r"Args (and Raises )?are those of `\w+`", text):
        return
    parameters = inspect.signature(function).parameters.keys() - USUAL
    assert parameters - described(text) == set()


@pytest.mark.parametrize(("name", "function", "text"), FUNCTIONS, ids=[n for n, _, _ in FUNCTIONS])
def test_a_result_is_described(name: str, function: Callable[..., Any], text: str) -> None:
    returned = inspect.signature(function).return_annotation
    if function.__name__ == "__init__" or returned in ("None", None, "Self", "NoReturn"):
        return
    first = text.split(maxsplit=1)[0] if text else ""
    # A summary is the result itself ("The mean of ...") or an action ("Read ...").
    names_it = first in ("A", "An", "The", "Whether") or re.search(r"\b[Rr]eturns?\b|Yields:", text)
    assert names_it, f"{first!r}, and no Returns"


def with_examples() -> Iterator[str]:
    for path in sorted((ROOT / "hvd_ext").rglob("*.py")):
        if ">>> " in path.read_text():
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("module", sorted(with_examples()))
def test_examples_of_docstrings_run(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert tried
    assert not failed
