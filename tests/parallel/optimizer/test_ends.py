"""Buckets of short gradients whose hooks are reduced to two: the sums stay what they were."""

from __future__ import annotations

import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext.errors import UsageError
from tests.support.optimizer.layers import LAYERS

pytestmark = [pytest.mark.ranks(2), pytest.mark.usefixtures("hvd")]


EACH = 2 * LAYERS
BACKWARDS = list(range(LAYERS))[::-1]
WITHOUT_ONE = [0, 1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize(
    "orders",
    [
        (BACKWARDS, BACKWARDS),
        (BACKWARDS, range(LAYERS)),
        (range(LAYERS), WITHOUT_ONE),
        ([7, 1, 2, 3, 4, 5, 6, 0], range(LAYERS)),
        ([0, 1, 2], [7, 6, 5]),
    ],
)
def test_another_order_brings_hooks_back(training, orders):
    for _ in range(3):
        training.take(orders)
        training.optimizer.zero_grad()
    assert training.hooks() == (2 if orders[hvd.rank()] == range(LAYERS) else EACH)
    training.take()


def test_gradients_that_are_zeroed(training):
    training.take()
    for _ in range(3):
        training.optimizer.zero_grad(set_to_none=False)
        training.take()
    assert training.hooks() == EACH


def test_gradients_of_which_the_program_drops_some(training):
    dropped = training.model.layers[3].weight

    def drop(parameter):
        parameter.grad = None

    handle = dropped.register_post_accumulate_grad_hook(drop)
    training.backward()
    training.optimizer.step()
    assert not dropped.grad.any()
    handle.remove()
    training.optimizer.zero_grad()
    training.step += 1
    training.take()


def test_a_second_backward_pass_is_refused(training):
    training.backward()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
        training.backward()


def test_a_changed_gradient_is_noticed(training):
    training.backward()
    training.model.layers[3].weight.grad.mul_(2)
    with pytest.raises(UsageError, match=r"layers\.3\.weight.*was changed between"):
        training.optimizer.step()


def test_more_backward_passes_a_step(training):
    training.optimizer.set_backward_passes_per_step(2)
    for _ in range(3):
        training.take(passes=2)
        training.optimizer.zero_grad()
    assert training.hooks() == EACH


def test_more_parameters(training):
    more = torch.nn.Linear(4, 4)
    training.optimizer.add_param_group({"params": list(more.parameters())})
    assert training.hooks() == EACH
    training.step = 0
    training.take()


def test_a_dropped_optimizer_leaves_no_hooks(training):
    del training.optimizer
    assert training.hooks() == 0
