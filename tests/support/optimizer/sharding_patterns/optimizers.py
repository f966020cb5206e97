"""Optimizers and their options; and those that scripts write themselves."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.optimizer.sharding_patterns import STEPS, Run, pattern

_OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "sgd_weight_decay": (torch.optim.SGD, {"weight_decay": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}),
    "sgd_nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "sgd_maximize": (torch.optim.SGD, {"maximize": True, "weight_decay": 0.1}),
    "sgd_foreach": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "sgd_fused": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    "adam": (torch.optim.Adam, {}),
    "adam_l2": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adam_amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adam_betas_and_eps": (torch.optim.Adam, {"betas": (0.5, 0.9), "eps": 1e-4}),
    "adam_rate_is_a_tensor": (torch.optim.Adam, {"lr": torch.tensor(0.01), "foreach": False}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "adamw_fused": (torch.optim.AdamW, {"fused": True}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "radam": (torch.optim.RAdam, {}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"initial_accumulator_value": 0.1, "lr_decay": 0.1}),
    "adadelta": (torch.optim.Adadelta, {}),
    "rprop": (torch.optim.Rprop, {}),
    "asgd": (torch.optim.ASGD, {"t0": 2}),
}


class Lion(torch.optim.Optimizer):
    """Signs of a running mean (Chen et al., 2023)."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    p.sub_(mean.lerp(p.grad, 0.1).sign(), alpha=group["lr"])
                    mean.lerp_(p.grad, 0.01)


class DecaysInGrad(torch.optim.Optimizer):
    """Adds weight decay to `.grad` itself, as older code does."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.data.add_(p.data, alpha=0.1)
                    p.data.add_(p.grad.data, alpha=-group["lr"])


class CountsItself(Lion):
    """Has a setting and a counter that are attributes, not options."""

    strength, taken = 1.0, 0

    @torch.no_grad()
    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=self.strength * group["lr"] / self.taken)


def _trains(kind: Any, options: dict[str, Any]):
    def trains(run: Run) -> None:
        model, optimizer = run.setup(kind, **options)
        for _ in range(STEPS):
            run.step(model, optimizer)

    return trains


for _name, (_kind, _options) in _OPTIMIZERS.items():
    _function = _trains(_kind, _options)
    _function.__name__ = f"optimizer_{_name}"
    pattern(_function)


@pattern
def optimizer_of_the_script(run: Run) -> None:
    _trains(Lion, {})(run)


@pattern
def optimizer_that_changes_gradients(run: Run) -> None:
    _trains(DecaysInGrad, {})(run)


@pattern
def optimizer_whose_attributes_are_set_and_read(run: Run) -> None:
    model, optimizer = run.setup(CountsItself)
    for _ in range(STEPS):
        run.step(model, optimizer)
        optimizer.strength = 0.5
        run.note(torch.tensor(optimizer.taken))


@pattern
def optimizer_that_was_trained_before(run: Run) -> None:
    model = run.model()
    inner = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 7)).sum().backward()
    inner.step()
    optimizer = run.wrap(inner)
    for _ in range(STEPS):
        run.step(model, optimizer)


@pattern
def optimizer_of_an_optimizer_for_each_layer(run: Run) -> None:
    model = run.model()
    optimizers = [
        run.wrap(torch.optim.Adam(model[0].parameters(), lr=0.01)),
        run.wrap(torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)),
    ]
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        run.loss(model).backward()
        for optimizer in optimizers:
            optimizer.step()
