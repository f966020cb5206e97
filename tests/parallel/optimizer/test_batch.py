"""Short gradients that are copied together: the sums, whatever became of a gradient before."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext.errors import UsageError
from hvd_ext.torch.reduction.batch import Batch
from hvd_ext.torch.reduction.slot import GradientSlot
from tests.support.optimizer.layers import LAYERS, Training

pytestmark = [pytest.mark.ranks(2), pytest.mark.usefixtures("hvd")]


@pytest.fixture
def brought_in(monkeypatch):
    """Whether each batch was brought in, so far."""
    noted = []
    bring_in = Batch.bring_in

    def note(batch, others):
        noted.append(bring_in(batch, others))
        return noted[-1]

    monkeypatch.setattr(Batch, "bring_in", note)
    return noted


def middle(training):
    """Two parameters of one shape, without hooks."""
    return training.model.layers[3].weight, training.model.layers[4].weight


def test_sums_are_where_autograd_made_the_gradients(training, brought_in):
    parameter, _ = middle(training)
    expected = training.expected([range(LAYERS)] * 2)
    training.backward()
    grad, address = parameter.grad, parameter.grad.data_ptr()
    training.optimizer.synchronize()
    assert brought_in == [True]
    assert parameter.grad is grad
    assert type(grad) is torch.Tensor
    assert grad.data_ptr() == address
    for p, mean in zip(training.model.parameters(), expected, strict=True):
        assert torch.equal(p.grad, mean)
    died = weakref.ref(grad)
    del grad
    training.optimizer.zero_grad()
    gc.collect()
    assert died() is None


class Subclass(torch.Tensor):
    pass


def lazily_negated(grad):
    negated = torch.complex(torch.zeros_like(grad), -grad).conj().imag
    assert negated.is_neg()
    return negated


def with_a_graph(grad):
    with torch.enable_grad():
        return grad.clone().requires_grad_() * 1


UNUSUAL = {
    "a subclass of Tensor": lambda grad: grad.as_subclass(Subclass),
    "in columns": lambda grad: grad.t().contiguous().t(),
    "lazily negated": lazily_negated,
    "with a graph": with_a_graph,
}


@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_gradient(training, brought_in, make):
    parameter, _ = middle(training)

    def replace(p):
        p.grad = make(p.grad)

    handle = parameter.register_post_accumulate_grad_hook(replace)
    training.take()
    handle.remove()
    training.optimizer.zero_grad()
    training.take()
    assert brought_in == [False, True]


def test_two_gradients_in_the_same_memory(training, brought_in):
    first, second = middle(training)  # backward makes the second one's before

    def share(p):
        p.grad = second.grad

    handle = first.register_post_accumulate_grad_hook(share)
    expected = training.expected([range(LAYERS)] * 2)
    training.backward()
    training.optimizer.synchronize()
    mean = expected[[p is second for p in training.model.parameters()].index(True)]
    assert torch.equal(first.grad, mean)
    assert torch.equal(second.grad, mean)
    assert brought_in == [False]
    handle.remove()


def test_two_gradients_that_share_memory_in_part_on_one_rank(training, brought_in):
    first, second = middle(training)  # backward makes the second one's before
    own = []

    def share(p):  # as the backward of torch.cat makes views of one tensor
        if hvd.rank() == 0:
            memory = torch.cat([second.grad.flatten(), p.grad.flatten()[8:]])
            second.grad, p.grad = memory[:16].view(4, 4), memory[8:].view(4, 4)
        own.extend((p.grad.clone(), second.grad.clone()))

    first.register_post_accumulate_grad_hook(share)
    training.backward()
    training.optimizer.synchronize()
    everyones = hvd.allgather_object(own)
    for parameter, grads in zip((first, second), zip(*everyones, strict=True), strict=True):
        assert torch.equal(parameter.grad, sum(grads) / 2)
    assert brought_in == [hvd.rank() != 0]


def test_gradients_of_two_buckets_that_share_memory_in_part():
    memory = torch.arange(24.0)
    batches = []
    for grad in (memory[:16], memory[8:], memory[16:]):
        parameter = torch.nn.Parameter(torch.zeros_like(grad))
        parameter.grad = grad
        slot = GradientSlot(0, "one", parameter, torch.zeros_like(grad), 1)
        slot.address = slot.view.data_ptr()
        batches.append(Batch([slot]))
        assert batches[-1].collect()
    one, other, apart = batches
    assert one.bring_in([])
    assert not other.bring_in([one])
    assert apart.bring_in([one])


@pytest.mark.parametrize("change", ["in place", "by numpy", "data", "another", "none"])
def test_a_changed_gradient_is_refused(training, brought_in, change):
    parameter, _ = middle(training)
    training.backward()
    if change == "in place":
        parameter.grad.data.mul_(2)
    elif change == "by numpy":
        parameter.grad.numpy()[-1] *= -1
    elif change == "data":
        parameter.grad.data = parameter.grad.clone()
    else:
        parameter.grad = parameter.grad.clone() if change == "another" else None
    assert brought_in == [True]
    with pytest.raises(UsageError, match=r"layers\.3\.weight.*was changed between"):
        training.optimizer.step()


def test_a_parameter_unfrozen_meanwhile(brought_in):
    training = Training(frozen=0)
    training.until_two_hooks_are_left()
    for parameter in training.model.layers[0].parameters():
        parameter.requires_grad_()
    brought_in.clear()
    training.take()
    assert brought_in == [True]
    training.optimizer.zero_grad()
    training.take()


def test_another_optimizer_of_the_same_parameters(training, brought_in):
    other = hvd.DistributedOptimizer(
        torch.optim.SGD(training.model.parameters(), lr=0.0), training.model.named_parameters()
    )
    training.take()
    other.step()
    assert brought_in == [False]
