"""Which optimizers may update a part of a parameter: found by trying, on one process."""

from __future__ import annotations

import pytest
import torch

from hvd_ext.errors import UsageError
from hvd_ext.torch.sharded.elementwise import try_elementwise

SERVED = [
    (torch.optim.SGD, {"lr": 0.1}, set()),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, {"momentum_buffer"}),
    (torch.optim.Adam, {}, {"exp_avg", "exp_avg_sq"}),
    (torch.optim.Adam, {"amsgrad": True}, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
    (torch.optim.Adam, {"lr": 0.0}, {"exp_avg", "exp_avg_sq"}),
    (torch.optim.AdamW, {"foreach": True}, {"exp_avg", "exp_avg_sq"}),
    (torch.optim.AdamW, {"fused": True}, {"exp_avg", "exp_avg_sq"}),
    (torch.optim.Adamax, {}, {"exp_avg", "exp_inf"}),
    (torch.optim.RMSprop, {"centered": True}, {"square_avg", "grad_avg"}),
    (torch.optim.Adagrad, {}, {"sum"}),
    (torch.optim.Adadelta, {}, {"square_avg", "acc_delta"}),
    (torch.optim.NAdam, {}, {"exp_avg", "exp_avg_sq"}),
    (torch.optim.RAdam, {}, {"exp_avg", "exp_avg_sq"}),
    (torch.optim.Rprop, {}, {"prev", "step_size"}),
    (torch.optim.ASGD, {}, {"ax"}),
]


@pytest.mark.parametrize(("kind", "options", "expected"), SERVED)
def test_state_with_a_value_for_each_element(kind, options, expected):
    parameter = torch.nn.Parameter(torch.randn(5, 7))
    optimizer = kind([parameter], **options)
    before = parameter.detach().clone()
    assert try_elementwise(optimizer, kind) == (expected, False)
    assert torch.equal(parameter, before)
    assert parameter.grad is None


def test_an_optimizer_that_has_taken_steps_is_left_as_it_is():
    parameter = torch.nn.Parameter(torch.randn(5, 7))
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.ones(5, 7)
    optimizer.step()
    held = {key: value.clone() for key, value in optimizer.state[parameter].items()}
    try_elementwise(optimizer, torch.optim.Adam)
    assert len(optimizer.state) == 1
    assert all(torch.equal(optimizer.state[parameter][key], held[key]) for key in held)


def test_hooks_and_random_numbers_are_left_alone():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: pytest.fail("the hook was called"))
    state = torch.get_rng_state()
    try_elementwise(optimizer, torch.optim.SGD)
    assert torch.equal(torch.get_rng_state(), state)


class OnTheWhole(torch.optim.Optimizer):
    """Divides a gradient by its largest element."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad / p.grad.abs().max(), alpha=group["lr"])


class ByRows(OnTheWhole):
    """Keeps state of another shape, and does not use it."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p]["rows"] = p.grad.reshape(p.shape[0], -1).sum(1)
            p.sub_(p.grad)


class InGrad(OnTheWhole):
    """Adds weight decay to the gradient itself."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad.data.add_(p, alpha=0.1)
            p.sub_(p.grad)


def test_a_step_that_changes_gradients_is_noticed():
    optimizer = InGrad([torch.nn.Parameter(torch.randn(4, 8))])
    assert try_elementwise(optimizer, InGrad).changes_gradients


class Counts(OnTheWhole):
    """Keeps state that is no parameter's, and that nobody would save in parts."""

    @torch.no_grad()
    def step(self, closure=None):
        self.state["steps"] = self.state.get("steps", 0) + 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (torch.optim.LBFGS, "LBFGS cannot update a part of a parameter"),
        (torch.optim.Adafactor, "Adafactor updates an element by more"),
        (torch.optim.Muon, "Muon "),
        (OnTheWhole, "OnTheWhole updates an element by more"),
        (ByRows, "ByRows updates an element by more"),
        (Counts, "Counts cannot update a part of a parameter \\(it keeps state"),
    ],
)
def test_others_are_refused_by_name(kind, words):
    optimizer = kind([torch.nn.Parameter(torch.randn(4, 8))])
    with pytest.raises(UsageError, match=f"^sharded=True: {words}.*leave sharded out$"):
        try_elementwise(optimizer, kind)


def test_one_group_of_several_can_be_the_reason():
    class Either(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad / (p.grad.norm() if group["by_norm"] else 1))

    groups = [
        {"params": [torch.nn.Parameter(torch.ones(3))], "by_norm": by_norm}
        for by_norm in (False, True)
    ]
    with pytest.raises(UsageError, match="Either updates"):
        try_elementwise(Either(groups, lr=0.1), Either)
