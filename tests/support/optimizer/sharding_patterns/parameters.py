"""Which parameters scripts have: frozen, shared, in groups, of 16 bits, empty."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.optimizer.sharding_patterns import STEPS, Run, mlp, pattern, refused
from tests.support.optimizer.sharding_patterns.gradients import IN_PARTS

# Freezing


@pattern
def frozen_before_it_is_wrapped(run: Run) -> None:
    model = run.model()
    model[0].requires_grad_(False)
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), weight_decay=0.1))
    for _ in range(STEPS):
        run.step(model, optimizer)


@pattern
def frozen_and_left_out(run: Run) -> None:
    model = run.model()
    model[0].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = run.wrap(torch.optim.Adam(trained))
    for _ in range(STEPS):
        run.step(model, optimizer)


@pattern
def all_frozen(run: Run) -> None:
    model = run.model()
    model.requires_grad_(False)
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.step()


@pattern
def frozen_halfway(run: Run) -> None:
    model, optimizer = run.setup(weight_decay=0.1)
    for step in range(8):
        if step == 3:
            model[0].requires_grad_(False)
        run.step(model, optimizer)


@pattern
def frozen_halfway_with_zeros_kept(run: Run) -> None:
    model, optimizer = run.setup(torch.optim.SGD, momentum=0.9, weight_decay=0.1)
    for step in range(8):
        optimizer.zero_grad(set_to_none=False)
        if step == 3:
            model[0].requires_grad_(False)
        run.loss(model).backward()
        optimizer.step()


@refused(IN_PARTS)
def frozen_halfway_with_the_gradient_kept(run: Run) -> None:
    model, optimizer = run.setup()
    for step in range(8):
        if step == 3:
            model[0].requires_grad_(False)
        for p in model.parameters():
            if p.requires_grad:
                p.grad = None
        run.loss(model).backward()
        optimizer.step()


@pattern
def frozen_and_trained_again(run: Run) -> None:
    model, optimizer = run.setup()
    for step in range(9):
        model[0].requires_grad_(not 3 <= step < 6)
        run.step(model, optimizer)


def _unfreezes(run: Run, step) -> None:
    """The last layer is trained from the fourth step on."""
    model = run.model()
    model[2].requires_grad_(False)
    # The plain optimizer is given it when it is trained.
    given = model.parameters() if run.sharded else model[0].parameters()
    optimizer = run.wrap(torch.optim.AdamW(given, lr=0.01))
    for number in range(9):
        if number == 3:
            model[2].requires_grad_(True)
            if not run.sharded:
                optimizer.add_param_group({"params": model[2].parameters()})
        step(model, optimizer)


@pattern
def unfrozen_later(run: Run) -> None:
    _unfreezes(run, run.step)


@pattern
def unfrozen_later_and_synchronized(run: Run) -> None:
    def step(model, optimizer) -> None:
        optimizer.zero_grad()
        run.loss(model).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()

    _unfreezes(run, step)


@pattern
def frozen_by_learning_rate(run: Run) -> None:
    model = run.model()
    groups = [{"params": list(layer.parameters())} for layer in (model[0], model[2])]
    optimizer = run.wrap(torch.optim.Adam(groups, lr=0.01))
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.0 if step < 3 else 0.01
        run.step(model, optimizer)


@pattern
def without_gradients_on_one_rank(run: Run) -> None:
    model, optimizer = run.setup()
    for step in range(STEPS):
        optimizer.zero_grad()
        x = model[1](model[0](torch.randn(4, 7)))
        (x if run.rank == step % 2 else model[2](x)).square().mean().backward()
        optimizer.step()


@pattern
def without_gradients_on_all_ranks(run: Run) -> None:
    model, optimizer = run.setup(weight_decay=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = model[0](torch.randn(4, 7))
        (x if step % 2 else model[2](x)).square().mean().backward()
        optimizer.step()


@pattern
def layers_are_dropped_at_random(run: Run) -> None:
    model = run.model(lambda: nn.ModuleList([nn.Linear(7, 7) for _ in range(4)]))
    optimizer = run.wrap(torch.optim.Adam(model.parameters()))
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(4, 7)
        for layer in model:
            x = x if torch.rand(()) < 0.5 else layer(x)
        (x.square().mean() + 0 * model[0](x).sum()).backward()
        optimizer.step()


# Groups


@pattern
def groups_with_options_of_their_own(run: Run) -> None:
    model = run.model()
    groups = [
        {"params": [model[0].weight, model[2].weight], "weight_decay": 0.1},
        {"params": [model[2].bias, model[0].bias], "lr": 0.1, "betas": (0.5, 0.9)},
    ]
    optimizer = run.wrap(torch.optim.AdamW(groups, lr=0.01), model.named_parameters())
    for _ in range(STEPS):
        run.step(model, optimizer)


@pattern
def group_added_later(run: Run) -> None:
    model = run.model()
    late = run.model(lambda: nn.Linear(3, 5))
    optimizer = run.wrap(torch.optim.Adam(model.parameters()))
    for step in range(8):
        if step == 2:
            optimizer.add_param_group({"params": late.parameters(), "lr": 0.1})
        run.step(model if step < 2 else nn.Sequential(model, late), optimizer)


@pattern
def options_changed_between_steps(run: Run) -> None:
    model, optimizer = run.setup()
    for step in range(STEPS):
        optimizer.param_groups[0].update(betas=(0.5, 0.9), weight_decay=0.1 * step)
        run.step(model, optimizer)


@pattern
def order_of_the_optimizer_is_another(run: Run) -> None:
    model = run.model()
    optimizer = run.wrap(torch.optim.Adam(reversed(list(model.parameters()))))
    for _ in range(STEPS):
        run.step(model, optimizer)


# Kinds


@pattern
def tied(run: Run) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.outside = nn.Linear(7, 31), nn.Linear(31, 7)
            self.outside.weight = nn.Parameter(torch.randn(7, 31))
            self.again = nn.Linear(7, 31)
            self.again.weight = self.inside.weight

        def forward(self, x):
            return self.again(self.outside(torch.tanh(self.inside(x))))

    model = run.model(Tied)
    optimizer = run.wrap(torch.optim.Adam(model.parameters()))
    for _ in range(STEPS):
        run.step(model, optimizer)


class _Of(nn.Module):
    """A product of a parameter of some shape."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.of = nn.ParameterList([torch.randn(shape) for shape in shapes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum((p.square().sum() * x.mean() for p in self.of), x.sum())


@pattern
def empty_and_scalar(run: Run) -> None:
    model = run.model(lambda: _Of((0,), (), (3, 0, 2), (1,), (5,)))
    optimizer = run.wrap(torch.optim.Adam(model.parameters(), weight_decay=0.1))
    for _ in range(STEPS):
        run.step(model, optimizer)


@pattern
def fewer_elements_than_ranks(run: Run) -> None:
    model = run.model(lambda: _Of(()))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for _ in range(STEPS):
        run.step(model, optimizer)


def _steps_of_16_bits(run: Run, dtype: torch.dtype) -> None:
    model = run.model(lambda: mlp().to(dtype))
    optimizer = run.wrap(torch.optim.AdamW(model.parameters(), lr=0.01))
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 7).to(dtype)).float().square().mean().backward()
        optimizer.step()


@pattern
def bfloat16(run: Run) -> None:
    _steps_of_16_bits(run, torch.bfloat16)


@pattern
def float16(run: Run) -> None:
    _steps_of_16_bits(run, torch.float16)


@pattern
def float64_beside_float32(run: Run) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(7, 31), nn.Linear(31, 3).double()

        def forward(self, x):
            return self.second(self.first(x).double())

    model = run.model(Mixed)
    optimizer = run.wrap(torch.optim.Adam(model.parameters()))
    for _ in range(STEPS):
        run.step(model, optimizer)


@pattern
def weights_in_32_bits_beside_a_model_in_16(run: Run) -> None:
    model = run.model(lambda: mlp().bfloat16())
    weights = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = run.wrap(torch.optim.SGD(weights, lr=0.1, momentum=0.9))
    for _ in range(STEPS):
        model.zero_grad()
        model(torch.randn(4, 7).bfloat16()).float().square().mean().backward()
        for weight, p in zip(weights, model.parameters(), strict=True):
            weight.grad = p.grad.float()
        optimizer.step()
        for weight, p in zip(weights, model.parameters(), strict=True):
            p.data.copy_(weight.data)


@pattern
def transposed_in_memory(run: Run) -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(31, 7).t())
            self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)

        def forward(self, x):
            return x @ self.weight.clone() + self.conv(x.mean() * torch.ones(1, 3, 3, 3)).mean()

    model = run.model(Transposed)
    optimizer = run.wrap(torch.optim.Adam(model.parameters()))
    for _ in range(STEPS):
        run.step(model, optimizer)
