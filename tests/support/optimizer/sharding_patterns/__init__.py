"""What training scripts do with an optimizer: run with a sharded one, and with a plain one.

A pattern is a function that gets a Run. All that it leaves there (parameters, losses, what it
has read of gradients) is the same bits with both optimizers, or the sharded one raises one line,
the same on every rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

import hvd_ext.torch as hvd
from hvd_ext.errors import HvdExtError

Pattern = Callable[["Run"], None]
PATTERNS: dict[str, Pattern] = {}
REFUSED: dict[str, str] = {}  # the words with which the sharded optimizer refuses a pattern
STEPS = 6  # buckets are laid out again after four


def pattern(function: Pattern) -> Pattern:
    """Have a pattern be the same bits."""
    assert function.__name__ not in PATTERNS, function.__name__
    PATTERNS[function.__name__] = function
    return function


def refused(words: str) -> Callable[[Pattern], Pattern]:
    """Have a pattern be refused by the sharded optimizer, in words that match."""

    def of(function: Pattern) -> Pattern:
        REFUSED[function.__name__] = words
        return pattern(function)

    return of


class Run:
    """One run of a pattern, and what is compared of it."""

    def __init__(self, sharded: bool) -> None:
        self.sharded = sharded
        self.rank = hvd.rank()
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._noted: list[torch.Tensor] = []
        self.error: Exception | None = None
        torch.manual_seed(1000 + self.rank)

    def model(self, make: Callable[[], torch.nn.Module] | None = None) -> torch.nn.Module:
        """A model with the same parameters on every rank; compared at the end."""
        with torch.random.fork_rng():
            torch.manual_seed(len(self._models))
            model = (make or mlp)()
        self._models.append(model)
        return model

    def wrap(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """DistributedOptimizer; its state is compared at the end."""
        wrapped = hvd.DistributedOptimizer(optimizer, *args, sharded=self.sharded, **kwargs)
        self._optimizers.append(wrapped)
        return wrapped

    def drop(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep an optimizer no longer."""
        self._optimizers = [kept for kept in self._optimizers if kept is not optimizer]

    def setup(self, kind: Any = torch.optim.Adam, **options: Any) -> tuple[torch.nn.Module, Any]:
        """The usual model, and its optimizer."""
        model = self.model()
        return model, self.wrap(kind(model.parameters(), **({"lr": 1e-2} | options)))

    def loss(self, model: torch.nn.Module) -> torch.Tensor:
        """Of a batch that no other rank has."""
        loss = model(torch.randn(4, 7)).square().mean()
        self.note(loss)
        return loss

    def step(self, model: torch.nn.Module, optimizer: Any) -> None:
        """The usual step."""
        optimizer.zero_grad()
        self.loss(model).backward()
        optimizer.step()

    def note(self, *tensors: torch.Tensor) -> None:
        """Have these be compared."""
        self._noted += [tensor.detach().clone() for tensor in tensors]

    def results(self) -> Iterator[torch.Tensor]:
        """All that is compared; a collective."""
        yield from self._noted
        for model in self._models:
            yield from model.state_dict().values()
        for optimizer in self._optimizers:
            # Where one was forgotten, their order is another.
            for _, state in sorted(optimizer.state_dict()["state"].items()):
                yield from (v for v in state.values() if isinstance(v, torch.Tensor))


def mlp() -> torch.nn.Module:
    """Sizes that no number of ranks divides."""
    return torch.nn.Sequential(torch.nn.Linear(7, 31), torch.nn.Tanh(), torch.nn.Linear(31, 3))


def run(name: str, sharded: bool) -> Run:
    """Run a pattern; an error that is one is kept."""
    made = Run(sharded)
    try:
        PATTERNS[name](made)
    except Exception as error:  # whatever a script meets
        made.error = error
    return made


def differences(name: str) -> str:
    """Where the sharded optimizer does not do as it should; empty if it does; a collective."""
    ours, theirs = run(name, True), run(name, False)
    if name in REFUSED:
        if not isinstance(ours.error, HvdExtError):
            return f"was not refused, but {ours.error!r}"
        line = str(ours.error)
        matches = re.search(REFUSED[name], line) and "\n" not in line
        return "" if matches else f"was refused in other words: {line}"
    if repr(ours.error) != repr(theirs.error):
        return f"raised {ours.error!r}, and the plain one {theirs.error!r}"
    pairs = list(zip(ours.results(), theirs.results(), strict=True))
    wrong = [i for i, (a, b) in enumerate(pairs) if not _same_bits(a, b)]
    return f"results {wrong} of {len(pairs)} are other bits" if wrong else ""


def _same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    # numpy has no bfloat16, and torch.equal takes no NaN for another.
    wider = {torch.float16: torch.float32, torch.bfloat16: torch.float32}.get(ours.dtype)
    arrays = [tensor.to(wider or tensor.dtype).numpy(force=True) for tensor in (ours, theirs)]
    return arrays[0].tobytes() == arrays[1].tobytes()
