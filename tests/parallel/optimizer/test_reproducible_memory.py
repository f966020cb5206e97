"""Partial sums of a reproducible step: as many as docs/guides/reproducible.md says, and no more."""

from __future__ import annotations

import gc
import math

import pytest
import torch

from tests.ranks.asserts import parallel_assert
from tests.support.optimizer.memory_in_use import COUNTS, allocated_bytes

LENGTHS = (2**20, 2**19, 2**20, 2**18)  # of parameters, in float32
MODEL_BYTES, LARGEST_BYTES = 4 * sum(LENGTHS), 4 * max(LENGTHS)
SLACK_BYTES = 2**19  # half of the smallest parameter
STEPS = 4  # buckets are laid out again meanwhile


class Measured:
    """A training whose passes leave nothing in memory but gradients."""

    def __init__(self, hvd, slots: int) -> None:
        self.each = slots // hvd.size()
        self.parameters = [torch.nn.Parameter(torch.ones(length)) for length in LENGTHS]
        self.factors = [torch.ones(length) for length in LENGTHS]
        inner = torch.optim.SGD(self.parameters, lr=0.5)
        self.optimizer = hvd.DistributedOptimizer(inner, reproducible=slots)
        self.grown: list[int] = []
        self.before = 0
        for parameter in self.parameters:  # before the optimizer takes a gradient, and after it
            parameter.register_hook(lambda _: self.note())
            parameter.register_post_accumulate_grad_hook(lambda _: self.note())

    def note(self) -> None:
        self.grown.append(allocated_bytes() - self.before)

    def step(self) -> tuple[list[int], list[int], int]:
        """Take a step.

        Returns:
            After each backward pass, the bytes of partial sums and those by which the process has
            grown; and by how many it had grown at most.
        """
        held, grown = [], []
        self.optimizer.zero_grad()
        gc.collect()
        self.before = allocated_bytes()
        self.grown.clear()
        for _ in range(self.each):
            pairs = zip(self.parameters, self.factors, strict=True)
            sum((parameter * factor).sum() for parameter, factor in pairs).backward()
            held.append(self.partial_bytes())
            self.note()
            grown.append(self.grown[-1])
        self.optimizer.step()
        return held, grown, max(self.grown)

    def partial_bytes(self) -> int:
        """Bytes of the reducer's partial sums, each memory once."""
        sums = self.optimizer._reducer._partial.values()
        memories = [t.untyped_storage() for of in sums for t in of.values() if t is not None]
        return sum({memory.data_ptr(): memory.nbytes() for memory in memories}.values())


@pytest.mark.skipif(not COUNTS, reason="glibc before 2.33 does not count what malloc gave out")
@pytest.mark.ranks(2, pytest.param(4, marks=pytest.mark.long), timeout_s=300)
@pytest.mark.parametrize(
    "passes", [4, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2, 8))]
)
def test_memory_is_that_of_the_stated_partial_sums(comm, hvd, passes):
    measured = Measured(hvd, passes * comm.size)
    for _ in range(STEPS):
        held, grown, most = measured.step()
    # Pass k leaves a partial sum for each binary digit of k; the last one is in the arena.
    expected = [MODEL_BYTES * number.bit_count() for number in range(1, passes)] + [0]
    parallel_assert(comm, held == expected, f"{held}, expected {expected}")
    off = max(abs(one - stated) for one, stated in zip(grown, expected, strict=True))
    parallel_assert(comm, off < SLACK_BYTES, f"{grown}, expected {expected}")
    # The gradient that autograd is making, and what it came from, are on top.
    stated = MODEL_BYTES * int(math.log2(passes))
    fits = stated <= most <= stated + LARGEST_BYTES + SLACK_BYTES
    parallel_assert(comm, fits, f"at most {most}, stated {stated}")
    measured.optimizer._reducer.close()
