"""Private names of torch and Horovod stand in the files that are made for them alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2] / "hvd_ext"
# What an upgrade of torch or Horovod may break; each function of theirs has a test.
SEAMS = {
    ROOT / "c10d" / "torch_internals.py",
    ROOT / "spatial" / "torch_internals.py",
    ROOT / "torch" / "torch_internals.py",
    ROOT / "torch" / "horovods.py",
}
# Without an underscore, but no documented part of torch either.
UNDOCUMENTED = {"hooked", "profile_hook_step", "__subclasses__", "__wrapped__"}
_PRIVATE = re.compile(r"_[a-zA-Z]\w*")

Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """The files that are no seams, parsed."""
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
        if path not in SEAMS
    }


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def defined(tree: ast.AST) -> Iterator[str]:
    """Names that a file gives to functions, variables, and attributes of its own objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        ):
            yield node.attr


def used(tree: ast.AST, torchs: set[str]) -> Iterator[tuple[int, str]]:
    """Attributes, imported names, and text that is the name of an attribute of torch's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names)
            yield from ((node.lineno, part) for part in (node.module or "").split("."))
        elif isinstance(node, ast.Constant) and node.value in torchs:
            yield node.lineno, node.value


def test_private_names_of_torch_stand_in_the_seams(trees: Trees) -> None:
    module = torch.nn.Conv2d(1, 1, 1)
    objects = (torch, torch.Tensor, module, torch.optim.SGD(module.parameters(), lr=1.0))
    torchs = {name for one in objects for name in dir(one) if _PRIVATE.fullmatch(name)}
    ours = {name for tree in trees.values() for name in defined(tree)}
    know_torch = [
        path
        for path, tree in trees.items()
        if any(name.split(".")[0] in ("torch", "horovod") for name in imported(tree))
    ]
    assert len(know_torch) > 50
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in know_torch
        for line, name in used(trees[path], torchs)
        if name in UNDOCUMENTED or (_PRIVATE.fullmatch(name) and name not in ours)
    ]
    assert found == []


def test_horovod_is_imported_by_one_file(trees: Trees) -> None:
    found = [
        p for p, tree in trees.items() if any(n.split(".")[0] == "horovod" for n in imported(tree))
    ]
    assert found == []


def test_no_class_of_the_optimizer_has_an_unknown_base(trees: Trees) -> None:
    """Neither mypy nor a documentation tool sees into a class that derives from Any."""
    names = {"Any", "base"}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path, tree in trees.items()
        if path.is_relative_to(ROOT / "torch")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(
            isinstance(b, ast.Call) or (isinstance(b, ast.Name) and b.id in names)
            for b in node.bases
        )
    ]
    assert found == []
