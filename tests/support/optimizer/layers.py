"""A model of many short gradients, whose hooks are reduced to two after some steps."""

from __future__ import annotations

import torch

import hvd_ext.torch as hvd

LAYERS = 8
STEPS = 10  # hooks are removed after the fifth


class Layers(torch.nn.Module):
    """Short layers that can be taken in another order, or left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, order: range | list[int]) -> torch.Tensor:
        for index in order:
            x = torch.tanh(self.layers[index](x))
        return x


class Training:
    """A model, its optimizer, and what gradients ought to be."""

    def __init__(self, frozen=None) -> None:
        self.model = Layers()
        if frozen is not None:
            self.model.layers[frozen].requires_grad_(False)
        inner = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.optimizer = hvd.DistributedOptimizer(inner, self.model.named_parameters())
        self.step = 0

    def backward(self, order=range(LAYERS), rank=None):
        generator = torch.Generator().manual_seed(
            100 * self.step + (hvd.rank() if rank is None else rank)
        )
        self.model(torch.randn(3, 4, generator=generator), order).square().sum().backward()

    def expected(self, orders):
        """The mean of the gradients of both ranks, each of which takes layers in its order."""
        mine = torch.nn.Module.__new__(Layers)
        torch.nn.Module.__init__(mine)
        mine.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(LAYERS))
        mine.load_state_dict(self.model.state_dict())
        for p, own in zip(self.model.parameters(), mine.parameters(), strict=True):
            own.requires_grad_(p.requires_grad)
        kept, self.model = self.model, mine
        gradients = []
        for rank, order in enumerate(orders):
            self.backward(order, rank)
            gradients.append(
                [torch.zeros_like(p) if p.grad is None else p.grad for p in mine.parameters()]
            )
            mine.zero_grad()
        self.model = kept
        return [(a + b) / 2 for a, b in zip(*gradients, strict=True)]

    def take(self, orders=(range(LAYERS), range(LAYERS)), passes=1):
        """A step, in which sums are compared to the bit."""
        expected = self.expected(orders)
        for _ in range(passes):
            self.backward(orders[hvd.rank()])
        self.optimizer.synchronize()
        for (name, p), mean in zip(self.model.named_parameters(), expected, strict=True):
            if p.requires_grad:
                assert torch.equal(p.grad, passes * mean), name
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        self.step += 1

    def hooks(self):
        return sum(len(p._post_accumulate_grad_hooks or ()) for p in self.model.parameters())

    def until_two_hooks_are_left(self):
        while self.step < STEPS:
            self.optimizer.zero_grad()
            self.take()
        assert self.hooks() == 2
        self.optimizer.zero_grad()
