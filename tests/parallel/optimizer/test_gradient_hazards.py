"""What programs do to gradients besides training: served, or refused by name.

Whatever happens, ranks must never go on with different weights.
"""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy
import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext import listen
from hvd_ext.errors import UsageError
from hvd_ext.torch.torch_internals import InFlight, copy_all
from tests.support.optimizer.hazards import STEPS, assert_alike, backward, build

TWO = pytest.param(2, marks=pytest.mark.long)
pytestmark = [
    pytest.mark.ranks(TWO, 3),
    pytest.mark.usefixtures("nodes_by_variable", "hvd"),
]


def trained(between):
    """The weights after some steps, `between` being done to the model before each but the first."""
    model, optimizer = build()
    for step in range(STEPS):
        if step:
            between(model)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        backward(model, step)
        optimizer.step()
    assert_alike(model)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_gradients_may_be_put_elsewhere():
    def nothing(model):
        pass

    def assigned(model):
        for p in model.parameters():
            p.grad.data = p.grad.data.clone()

    def half_and_back(model):
        kept = [p.detach().clone() for p in model.parameters()]
        model.bfloat16().float()
        for p, old in zip(model.parameters(), kept, strict=True):
            p.data.copy_(old)

    def channels_last(model):
        model.to(memory_format=torch.channels_last)

    plain = trained(nothing)
    for between in (assigned, half_and_back, channels_last):
        torch.testing.assert_close(trained(between), plain, rtol=1e-5, atol=1e-7)


def test_clipped_by_data_after_synchronize():
    model, optimizer = build()
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.synchronize()
        for p in model.parameters():
            p.grad.data = p.grad.data.clamp(-1, 1)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert_alike(model)


def test_gradients_may_be_read_while_they_are_exchanged():
    """Read by whatever way; what would write without being noticed cannot."""
    model, optimizer = build()
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        backward(model, step)
        for p in model.parameters():
            read = [p.grad.norm(), p.grad.data.norm(), copy.deepcopy(p.grad), p.grad.detach()]
            assert {type(tensor) for tensor in read} == {torch.Tensor}
            assert type(pickle.loads(pickle.dumps(p.grad))) is torch.Tensor
            for array in (p.grad.numpy(), p.grad.data.numpy(), numpy.asarray(p.grad)):
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0
        optimizer.step()
        assert {type(p.grad) for p in model.parameters()} == {torch.Tensor}
        for p in model.parameters():
            p.grad.numpy()[...] *= 2  # from here on it is the program's
    assert_alike(model)


def test_graphs_are_not_kept():
    model, optimizer = build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of create_graph in general
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            backward(model, step, create_graph=True)
            assert all(p.grad.grad_fn is None for p in model.parameters())
            optimizer.step()
    assert_alike(model)


def test_two_optimizers_that_share_an_encoder():
    """Each takes a step with the mean of the whole gradient, as on one rank with all samples."""
    torch.manual_seed(0)
    encoder, *heads = (torch.nn.Linear(4, size) for size in (4, 1, 2))

    def loss(encoder, heads, step):
        generator = torch.Generator().manual_seed(100 * step + hvd.rank())
        coded = encoder(torch.randn(2, 4, generator=generator))
        return sum(head(coded).square().sum() for head in heads)

    alone = copy.deepcopy([encoder, *heads])

    def optimizers(encoder, heads):
        for head in heads:
            yield torch.optim.SGD(
                [*encoder.parameters(), *head.parameters()], lr=0.01, momentum=0.5
            )

    wrapped = [hvd.DistributedOptimizer(inner) for inner in optimizers(encoder, heads)]
    plain = list(optimizers(alone[0], alone[1:]))
    for step in range(2 * STEPS):
        set_to_none = step % 3 > 0
        for optimizer in (*wrapped, *plain):
            optimizer.zero_grad(set_to_none=set_to_none)
        loss(encoder, heads, step).backward()
        for optimizer in wrapped[:: 1 if step % 2 else -1]:
            optimizer.step()
        loss(alone[0], alone[1:], step).backward()
        for p in [p for module in alone for p in module.parameters()]:
            p.grad = hvd.allreduce(p.grad)
        for optimizer in plain[:: 1 if step % 2 else -1]:
            optimizer.step()
        if step == STEPS:
            wrapped.pop()  # its gradients are the other's alone again
            plain.pop()
    everything = torch.nn.ModuleList([encoder, *heads])
    assert_alike(everything)
    for p, expected in zip(
        everything.parameters(), torch.nn.ModuleList(alone).parameters(), strict=True
    ):
        torch.testing.assert_close(p, expected)


def test_sparse_where_other_ranks_have_none():
    for bias in (True, False):
        exchanged = []
        torch.manual_seed(0)
        table = torch.nn.Embedding(1000, 4, sparse=True)
        head = torch.nn.Linear(4, 1) if bias else torch.nn.Identity()
        parameters = [*table.parameters(), *head.parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.5))
        expected = table.weight.detach().clone()
        for step in range(8):
            optimizer.zero_grad()
            events = []
            stop = listen(events.append)  # a bucket may be reduced before step()
            users = [r for r in range(hvd.size()) if r == 0 or step > 1]
            if hvd.rank() in users:
                # By row 3 goes 1 for each rank that uses it, and by row 5 + rank the head's.
                (
                    table(torch.tensor([3])).sum() + 0 * head(table(torch.tensor([5]))).sum()
                ).backward()
            elif bias:
                (0 * head(torch.zeros(1, 4)).sum()).backward()
            optimizer.step()
            stop()
            exchanged.append(sum(event.message_bytes for event in events))
            expected[3] -= 0.5 * len(users) / hvd.size()
            assert torch.allclose(table.weight, expected)
        if hvd.size() > 1:
            assert exchanged[0] >= 16_000 > 1000 > exchanged[-1]
    # From then on no rank expects another one.
    late = torch.nn.Embedding(10, 4, sparse=True)
    other = torch.nn.Linear(4, 1)
    parameters = [*late.parameters(), *other.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.5))
    for _ in range(5):
        optimizer.zero_grad()
        other(torch.ones(4)).sum().backward()
        optimizer.step()
    if hvd.size() > 1:
        optimizer.zero_grad()
        with pytest.raises(UsageError, match="sparse for the first time in step 5"):
            late(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize("first_sparse", [0, 1, 3])
def test_sparse_on_one_rank_and_dense_on_others(first_sparse):
    """A tied embedding: rank 0 looks rows up, and others use the whole matrix, or nothing."""
    weight = torch.nn.Parameter(torch.ones(4, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    expected = weight.detach().clone()
    dense = torch.tensor([[0.0], [1.0], [2.0], [0.0]]).expand(4, 2)
    for step in range(8):
        # A sparse gradient that is added to a dense one is dense.
        optimizer.zero_grad(set_to_none=step <= first_sparse or step % 2 == 0)
        others_have_any = step != 2
        if hvd.rank() == 0 and step >= first_sparse:
            torch.nn.functional.embedding(
                torch.tensor([0, 1]), weight, sparse=True
            ).sum().backward()
        elif hvd.rank() > 0 and others_have_any:
            (weight * dense).sum().backward()
        optimizer.step()
        if step >= first_sparse:
            expected[:2] -= 1 / hvd.size()
        if others_have_any:
            expected -= dense * (hvd.size() - 1) / hvd.size()
        torch.testing.assert_close(weight.detach(), expected)


# What these leave half done is not gone on with.


def test_another_dtype_is_refused():
    model, optimizer = build()
    backward(model)
    optimizer.step()
    model.double()
    optimizer.zero_grad()
    with pytest.raises(UsageError, match=r"is torch.float64, and was torch.float32"):
        backward(model)


def test_changed_between_backward_and_step():
    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    def scale(model):
        for p in model.parameters():
            p.grad.mul_(0.5)

    def replace(model):
        for p in model.parameters():
            p.grad = p.grad * 0.5

    def clamp_data(model):
        for p in model.parameters():
            p.grad.data.clamp_(-1e-3, 1e-3)

    def scale_data(model):
        for p in model.parameters():
            p.grad.data *= 0.5

    def one_element_of_data(model):
        model[2].bias.grad.data.view(-1)[1:2].fill_(7)

    def one_gradient_of_a_list(model):
        grads = [p.grad for p in model.parameters()]
        torch._foreach_zero_([grads[0].data])

    def drop(model):
        model.zero_grad()  # the model's, which knows of no exchange

    by_data = (clamp_data, scale_data, one_element_of_data, one_gradient_of_a_list)
    for change in (clip, scale, replace, *by_data, drop):
        model, optimizer = build()
        for step in range(2):
            optimizer.zero_grad()
            backward(model, step)
            if step == 0:
                optimizer.step()
        change(model)
        with pytest.raises(UsageError, match=r"changed between .* call optimizer.synchronize"):
            optimizer.step()


@pytest.mark.parametrize("unused", [False, True])
def test_short_gradients_that_are_copied_together_are_watched(unused):
    """After some steps they are, also where a bucket lacks one when backward ends."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(36, 2)
    )
    model.unused = torch.nn.Parameter(torch.zeros(2)) if unused else None
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    used = [p for p in model.parameters() if p is not model.unused]
    together = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "hvd_ext.torch.reduction.together.copy_all",
            lambda into, grads: [together.append(len(into)), copy_all(into, grads)],
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            together.clear()
            model[2](model[1](model[0](torch.randn(2, 3, 5, 5)))).square().sum().backward()
            assert {type(p.grad) for p in used} == {InFlight}
            if step < STEPS - 1:
                optimizer.step()
                assert_alike(model)
    assert sum(together) == len(used)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(UsageError, match=r"changed between .* call optimizer.synchronize"):
        optimizer.step()


def test_memory_that_was_moved_is_noticed():
    model, optimizer = build()
    backward(model)
    optimizer.step()
    model.share_memory()
    with pytest.raises(UsageError, match="share_memory"):
        optimizer.synchronize()


def test_backward_in_a_closure_is_refused():
    model, optimizer = build()
    with pytest.raises(UsageError, match="closure"):
        optimizer.step(lambda: backward(model))


def test_a_step_before_its_exchange_is_refused():
    model, optimizer = build()
    before = [p.detach().clone() for p in model.parameters()]
    backward(model)
    with optimizer.skip_synchronize():
        with pytest.raises(UsageError, match=r"call optimizer.synchronize\(\) after the last"):
            optimizer.step()
        assert all(map(torch.equal, model.parameters(), before))
        optimizer.synchronize()
        optimizer.step()
    assert not any(map(torch.equal, model.parameters(), before))
    assert_alike(model)


def test_a_new_optimizer_trains_after_all_this():
    model, optimizer = build()
    backward(model)
    optimizer.step()
    assert_alike(model)
