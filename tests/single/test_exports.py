"""What a package exports says what it is for."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from testbed.ranks import ROOT

PACKAGES = ("hvd_ext.allreduce", "hvd_ext.c10d", "hvd_ext.data", "hvd_ext.spatial", "hvprof")
OVERRIDES = (
    *("DistributedOptimizer", "broadcast_optimizer_state", "broadcast_parameters", "init", "join"),
    *("empty", "plan_allreduce", "shutdown", "Slots", "slot_seed"),
)


HOROVOD = importlib.util.find_spec("horovod") is not None
with_horovod = pytest.mark.skipif(not HOROVOD, reason="Horovod is not installed")


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


@with_horovod
def test_every_name_of_horovods_is_there_and_no_file_hides_it() -> None:
    ours, horovods = (importlib.import_module(f"{name}.torch") for name in ("hvd_ext", "horovod"))
    for module in pkgutil.iter_modules(ours.__path__):
        importlib.import_module(f"hvd_ext.torch.{module.name}")
    for name, theirs in vars(horovods).items():
        if name.startswith("_") or inspect.ismodule(theirs):
            continue
        if name in ours.OVERRIDES:
            assert getattr(ours, name) is ours.OVERRIDES[name]
        else:
            assert getattr(ours, name) is theirs, name


@with_horovod
def test_without_horovod_every_name_is_there_with_horovods_arguments() -> None:
    alone, horovods = (
        importlib.import_module(name) for name in ("hvd_ext.torch.standalone", "horovod.torch")
    )
    names = {
        name
        for name, theirs in vars(horovods).items()
        if not name.startswith("_") and (name == "elastic" or not inspect.ismodule(theirs))
    }
    of_both = {"broadcast_optimizer_state"}  # by hvd_ext.torch, with Horovod and without
    assert set(alone.__all__) == names - {"check_extension"} - of_both
    for name in set(alone.__all__) - {"DistributedOptimizer", "init", "shutdown", "elastic"}:
        ours, theirs = getattr(alone, name), getattr(horovods, name)
        assert type(ours) is type(theirs) or not isinstance(theirs, int), name
        if isinstance(theirs, int):
            assert ours == theirs
        if inspect.isfunction(theirs):
            assert ours.__doc__, name
            arguments, expected = (
                [(p.name, p.default) for p in inspect.signature(f).parameters.values()]
                for f in (ours, theirs)
            )
            assert [n for n, _ in arguments] == [n for n, _ in expected], name
            for (argument, mine), (_, default) in zip(arguments, expected, strict=True):
                its_own = argument in ("process_set", "compression")
                assert its_own or mine == default, (name, argument)


def test_the_optimizers_package_shows_what_it_exports_and_no_module_of_its_own() -> None:
    ours = importlib.import_module("hvd_ext.torch")
    assert dir(ours) == sorted(ours.__all__)
    assert set(OVERRIDES) < set(ours.__all__)
    shown = {name for name in ours.__all__ if inspect.ismodule(getattr(ours, name))}
    # A module of Horovod's, which scripts use.
    assert shown == ({"elastic"} if HOROVOD else set())
    with pytest.raises(AttributeError, match=r"'hvd_ext\.torch' has no attribute 'alreduce'"):
        ours.alreduce  # noqa: B018


def test_the_wrapped_optimizers_methods_have_docstrings() -> None:
    for module, name in (("wrapped", "DistributedMixin"), ("sharded.wrapped", "ShardedMixin")):
        mixin = getattr(importlib.import_module(f"hvd_ext.torch.{module}"), name)
        for member, function in vars(mixin).items():
            if inspect.isfunction(function) and not member.startswith("_"):
                assert function.__doc__, f"{name}.{member} has no docstring"


def test_the_distributed_optimizer_explains_each_of_its_parameters() -> None:
    make = importlib.import_module("hvd_ext.torch").DistributedOptimizer
    assert make.__module__ == "hvd_ext.torch.optimizer"
    arguments = inspect.getdoc(make).partition("Args:")[2].partition("Returns:")[0]
    for name, parameter in inspect.signature(make).parameters.items():
        assert f"\n    {name}: " in arguments
        assert parameter.default in (None, False, 0, 1, inspect.Parameter.empty)


INSTALLED = """
import horovod.torch
from horovod.torch import init
from hvd_ext.torch import auto, horovods
auto.install()
assert horovod.torch.init is not init
assert horovods.init is init
found = horovod.torch.optimizer.DistributedOptimizer
assert found is horovod.torch.DistributedOptimizer is not horovods.DistributedOptimizer
assert found.__module__ == horovods.WRAPPED_MODULE == "horovod.torch.optimizer"
"""


@with_horovod
def test_installing_keeps_horovods_originals_and_the_module_by_which_it_recognises_its_own() -> (
    None
):
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_exported_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    for package, name in exported():
        # `automodule` takes the names of __all__.
        assert f"automodule:: {package}\n" in text or f":: {name}\n" in text, (package, name)
