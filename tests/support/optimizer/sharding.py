"""What is trained with a sharded optimizer, and without, and has to get the same bits."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import hvd_ext.torch

STEPS = 50
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}),
    "adam": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "foreach": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2, "initial_accumulator_value": 0.1}),
    "nadam": (torch.optim.NAdam, {"lr": 1e-2}),
    "radam": (torch.optim.RAdam, {"lr": 1e-2}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "fused_adam": (torch.optim.Adam, {"lr": 1e-2, "fused": True}),
}


class Net(torch.nn.Module):
    """Sizes that no number of ranks divides, a scalar, and a layout of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 7, 3, padding=1).to(memory_format=torch.channels_last)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))
        self.hidden = torch.nn.Linear(7, 301)
        self.out = torch.nn.Linear(301, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.conv(x)).mean((2, 3)) * self.scale
        return self.out(torch.tanh(self.hidden(y)))


def build() -> Net:
    torch.manual_seed(7)
    model = Net()
    torch.manual_seed(100 + hvd_ext.torch.rank())
    return model


def groups_of(model: Net, layout: str):
    if layout == "one":
        return list(model.parameters())
    biases = [p for name, p in model.named_parameters() if p.ndim < 2]
    weights = [p for name, p in model.named_parameters() if p.ndim >= 2]
    return [{"params": biases, "weight_decay": 0.0}, {"params": weights, "weight_decay": 1e-2}]


def wrap(model, sharded: bool, name: str = "adam", layout: str = "one", **arguments):
    kind, options = OPTIMIZERS[name]
    inner = kind(groups_of(model, layout), **options)
    return hvd_ext.torch.DistributedOptimizer(inner, sharded=sharded, **arguments)


def take_step(model, optimizer, passes: int = 1) -> None:
    optimizer.zero_grad()
    for _ in range(passes):
        model(torch.randn(4, 3, 6, 6)).square().mean().backward()
    optimizer.step()


def train(sharded: bool, steps: int = STEPS, name: str = "adam", layout: str = "one"):
    model = build()
    optimizer = wrap(model, sharded, name, layout)
    for _ in range(steps):
        take_step(model, optimizer)
    return model, optimizer


def parameters(model) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def build_same():
    """A model and its optimizer for `take_same_steps`."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(37, 301), torch.nn.Tanh(), torch.nn.Linear(301, 3))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)


def take_same_steps(model, optimizer, count: int) -> None:
    """The same gradients on every rank: the average is each of them, whatever their number."""
    for seed in range(count):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(seed)
        model(torch.randn(4, 37, generator=generator)).square().mean().backward()
        optimizer.step()


def assert_same_state(ours, theirs) -> None:
    assert ours["param_groups"] == theirs["param_groups"]
    assert list(ours["state"]) == list(theirs["state"])
    for index, state in theirs["state"].items():
        assert list(ours["state"][index]) == list(state), index
        for key, value in state.items():
            mine = ours["state"][index][key]
            if isinstance(value, torch.Tensor):
                assert torch.equal(mine, value), (index, key)
                assert mine.shape == value.shape
                assert mine.dtype == value.dtype
                assert mine.stride() == value.stride()
            else:
                assert mine == value
