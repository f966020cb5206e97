"""The slots of a reproducible step: the results of a slot depend only on its number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from hvd_ext import variables
from hvd_ext.arithmetic.summation_tree import slots_of_each_rank, tree_sum
from hvd_ext.errors import MismatchError
from hvd_ext.events import region
from hvd_ext.system.process import allow_singleton_mpi
from hvd_ext.torch import horovods
from hvd_ext.torch.job import lifecycle
from hvd_ext.torch.reproducible.statistics import SlotStatistics

T = TypeVar("T")


def slot_seed(seed: int, step: int, slot: int) -> int:
    """Return the seed of a slot's random numbers: the same on any number of ranks.

    Args:
        seed: seed of the run, at least 0.
        step: number of the step, from 0.
        slot: number of the slot in the step.

    Examples:
        >>> slot_seed(1, 0, 0) == slot_seed(1, 0, 0) != slot_seed(1, 0, 1)
        True
    """
    words = np.random.SeedSequence((seed, step, slot)).generate_state(1, np.uint64)
    return int(words[0]) >> 1  # torch needs a signed number


class Slots:
    """This rank's slots of each step of a model, and a backward pass for each.

    Examples:
        >>> optimizer = hvd.DistributedOptimizer(optimizer, reproducible=8)  # doctest: +SKIP
        >>> slots = hvd.Slots(model, 8, seed=1)  # doctest: +SKIP
        >>> for step in range(steps):  # doctest: +SKIP
        ...     optimizer.zero_grad()
        ...     loss = slots.backward(step, lambda slot: loss_of(batch_of(step, slot)))
        ...     optimizer.step()

    Attributes:
        count: slots of a step on all ranks.
        own: numbers of this rank's slots.
    """

    def __init__(self, model: nn.Module, count: int, *, seed: int, threads: int = 1) -> None:
        """Watch a model's running averages, and make torch compute alike on every rank.

        For the whole process, deterministic algorithms are switched on and the number of threads is
        set, because kernels may sum in another order on more threads.

        Args:
            model: its batch norms update their averages when `backward` ends.
            count: slots of a step, as in the optimizer's `reproducible=`.
            seed: seed of the slots' random numbers.
            threads: number of torch's threads, the same in all runs that must be equal.

        Raises:
            UsageError: the ranks cannot share this many slots, or the model has a SyncBatchNorm.
        """
        each = slots_of_each_rank(count, horovods.size())
        first = horovods.rank() * each
        self.count, self.own = count, range(first, first + each)
        self._seed = seed
        self._statistics = SlotStatistics(model)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True)
        allow_singleton_mpi()

    def backward(self, step: int, loss_of: Callable[[int], Tensor]) -> Tensor:
        """Run forward and backward for this rank's slots of a step; collective.

        Args:
            step: its number in the run, which determines the random numbers.
            loss_of: returns the loss of a slot's samples, a scalar, from the slot's number. While
                it runs, torch's random numbers are the slot's; afterwards they continue as before
                the step.

        Returns:
            The mean loss of all slots, in float32: the same bits on every rank.

        Raises:
            StallError: ranks did not reach this in time; names them.
            MismatchError: a slot has used other batch norms than slot 0.
        """
        mine, before = [], torch.get_rng_state()
        try:
            for slot in self.own:
                torch.manual_seed(slot_seed(self._seed, step, slot))
                with self._statistics.of_slot() as found:
                    with region("forward"):
                        loss = loss_of(slot)
                    with region("backward"):
                        loss.backward()
                mine.append((np.float32(loss.item()), found))
        finally:
            torch.set_rng_state(before)
        every = self.gather(mine)
        numbers = [[number for number, *_ in found] for _, found in every]
        for slot, its in enumerate(numbers):
            if its != numbers[0]:
                raise MismatchError(
                    f"slot {slot} of step {step} used other batch norms than slot 0: have every "
                    "slot use the same"
                )
        self._statistics.update([found for _, found in every])
        total = tree_sum([loss for loss, _ in every], np.add)
        return torch.tensor(total * np.float32(1.0 / self.count))

    def gather(self, of_own: Sequence[T]) -> list[T]:
        """Gather values of slots from all ranks; collective.

        Args:
            of_own: one for each slot of `own`.

        Returns:
            The values of all slots, in their order.

        Raises:
            StallError: ranks did not reach this in time; names them.
        """
        topology, limit_s = lifecycle.topology(), variables.STALL_TIMEOUT_S.read()
        # It names late ranks, which MPI's own allgather cannot.
        occasion = "an exchange of what slots have found"
        topology.allgather(None, limit_s, occasion)
        return [value for of_rank in topology.world.allgather(list(of_own)) for value in of_rank]
