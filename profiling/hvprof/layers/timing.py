"""Times the layers of a model forward and backward, and when gradients are ready.

The whole model runs forward and backward, and hooks read the clock when a layer begins and ends,
when the gradient of its output arrives, and when that of its parameters is ready. Freed memory is
kept, as in training; otherwise each pass would fault its gradients' pages in again.
"""

from __future__ import annotations

import ast
import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system.freed_memory import keep_freed_memory
from hvprof.layers.table import Layer, LayerTable

if TYPE_CHECKING:
    import torch


def time_layers(
    model: str,
    settings: Sequence[str],
    input_shape: tuple[int, ...],
    batches: Sequence[int],
    repeats: int,
) -> LayerTable:
    """Time a model's layers.

    Args:
        model: "module:callable", which returns a torch.nn.Module.
        settings: "name=value" arguments for the callable.
        input_shape: shape of one sample, such as (3, 224, 224).
        batches: batch sizes of a rank.
        repeats: number of passes of each batch; the median counts.

    Raises:
        UsageError: the model cannot be made, or does not accept such an input.
    """
    try:
        import torch
    except ImportError:
        raise HvdExtError("hvprof layers needs torch: run make env, or pip install torch") from None
    keep_freed_memory()
    built = _make_model(model, settings)
    chosen = tuple(sorted(set(batches)))
    clocks = []
    for batch in chosen:
        x = torch.randn(batch, *input_shape)
        try:
            # The first pass allocates; it does not count.
            clocks.append([_pass(built, x) for _ in range(repeats + 1)][1:])
        except (RuntimeError, ValueError, TypeError) as error:
            raise UsageError(
                f"{model} does not run on {tuple(x.shape)}: {str(error).splitlines()[0]};"
                " give --input the shape of one sample"
            ) from error
        print(f"hvprof: batch {batch} measured", file=sys.stderr)
    return LayerTable(
        model=" ".join([model, *settings]),
        input_shape=input_shape,
        batches=chosen,
        repeats=repeats,
        threads=torch.get_num_threads(),
        layers=tuple(_layers(built, clocks)),
    )


def parse_shape(text: str) -> tuple[int, ...]:
    """Read "3,224,224".

    Raises:
        UsageError: no whole numbers above 0.
    """
    try:
        shape = tuple(int(word) for word in text.split(","))
    except ValueError:
        shape = (0,)
    if min(shape) < 1:
        raise UsageError(f"{text!r}: give whole numbers above 0, such as 3,224,224")
    return shape


class _Clock:
    """The times of one pass by the layer's name, in seconds."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.products: dict[str, str] = {}
        self.forward_s: dict[str, float] = {}
        self.backward_s: dict[str, float] = {}
        self.ready_s: dict[str, float] = {}
        self._began: dict[str, float] = {}
        self._arrived: tuple[str, float] | None = None
        self.backward_began = 0.0

    def enter(self, name: str) -> None:
        self._began[name] = time.perf_counter()

    def leave(self, name: str) -> None:
        took_s = time.perf_counter() - self._began[name]
        if name not in self.forward_s:
            self.order.append(name)
        self.forward_s[name] = self.forward_s.get(name, 0.0) + took_s

    def arrive(self, name: str | None) -> None:
        """A layer's backward begins; that of the one before it has ended."""
        now = time.perf_counter()
        if self._arrived is not None:
            before, since = self._arrived
            self.backward_s[before] = self.backward_s.get(before, 0.0) + now - since
        self._arrived = (name, now) if name is not None else None

    def ready(self, name: str) -> None:
        self.ready_s[name] = time.perf_counter() - self.backward_began


def _pass(model: torch.nn.Module, x: torch.Tensor) -> _Clock:
    clock = _Clock()
    model.zero_grad(set_to_none=True)
    with _hooked(model, clock):
        output = _first_tensor(model(x))
        loss = output.float().sum()
        clock.backward_began = time.perf_counter()
        loss.backward()
        clock.arrive(None)
    return clock


@contextmanager
def _hooked(model: torch.nn.Module, clock: _Clock) -> Iterator[None]:
    handles: list[Any] = []
    for name, module in _leaves(model):
        handles.append(module.register_forward_pre_hook(_before(clock, name)))
        handles.append(module.register_forward_hook(_after(clock, name)))
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad:
                handles.append(
                    parameter.register_post_accumulate_grad_hook(
                        lambda _, name=name: clock.ready(name)
                    )
                )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _leaves(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, module in model.named_modules():
        if not any(True for _ in module.children()):
            yield name or type(module).__name__, module


def _before(clock: _Clock, name: str) -> Callable[..., None]:
    def hook(module: torch.nn.Module, inputs: Any) -> None:
        clock.enter(name)

    return hook


def _after(clock: _Clock, name: str) -> Callable[..., None]:
    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        clock.leave(name)
        found = _first_tensor(output)
        clock.products[name] = _product(module, found)
        # An output that is changed in place later still gets its own gradient here.
        if found is not None and found.requires_grad:
            found.register_hook(lambda _: clock.arrive(name))

    return hook


def _first_tensor(output: Any) -> Any:
    if isinstance(output, tuple | list):
        return next((found for one in output if (found := _first_tensor(one)) is not None), None)
    if isinstance(output, dict):
        return _first_tensor(tuple(output.values()))
    return output if hasattr(output, "requires_grad") else None


def _product(module: torch.nn.Module, output: torch.Tensor) -> str:
    """Return rows of a sample x inner x columns, if the layer is a matrix product."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() < 2 or output is None:
        return ""
    columns, inner = weight.shape[0], math.prod(weight.shape[1:])
    return f"{output.numel() // output.shape[0] // columns} x {inner} x {columns}"


def _layers(model: torch.nn.Module, clocks: list[list[_Clock]]) -> Iterator[Layer]:
    modules = dict(_leaves(model))
    last = clocks[-1]

    def median(of: list[_Clock], what: str, name: str) -> float:
        return statistics.median(getattr(clock, what).get(name, 0.0) for clock in of)

    for name in last[0].order:
        parameters = modules[name].parameters(recurse=False)
        yield Layer(
            name=name,
            kind=type(modules[name]).__name__,
            product=last[0].products.get(name, ""),
            gradient_bytes=sum(p.numel() * p.element_size() for p in parameters if p.requires_grad),
            forward_s=tuple(median(of, "forward_s", name) for of in clocks),
            backward_s=tuple(median(of, "backward_s", name) for of in clocks),
            ready_s=median(last, "ready_s", name),
        )


def _make_model(model: str, settings: Sequence[str]) -> torch.nn.Module:
    import torch

    where, _, name = model.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        make = getattr(importlib.import_module(where), name)
        built = make(**dict(_setting(text) for text in settings))
    except UsageError:
        raise
    except Exception as error:  # whatever the model's own code raises
        raise UsageError(
            f"cannot make {model!r}: {type(error).__name__}: {error}; "
            "give module:callable and its arguments, such as resnet.model:resnet50 classes=10"
        ) from error
    finally:
        sys.path.pop(0)
    if not isinstance(built, torch.nn.Module):
        raise UsageError(
            f"{model!r} returns a {type(built).__name__}: give a callable that returns a module"
        )
    return built.train()


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"{text!r}: write arguments of the model as name=value")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
