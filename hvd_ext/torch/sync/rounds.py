"""LocalSGD and DiLoCo: nodes train by themselves for some steps, and then exchange weights.

After each round, an outer optimizer (SGD with Nesterov's momentum) takes one step from the weights
at the start of the round. Its gradient is the mean distance that the nodes have moved. With a rate
of 1 and no momentum the result is the mean of the weights: LocalSGD. Every operation is rounded
once, so that nodes of different CPUs get the same bits.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hvd_ext.allreduce.algorithms import direct
from hvd_ext.allreduce.operations import OPERATIONS
from hvd_ext.arena.inter_node import Channels
from hvd_ext.errors import MismatchError
from hvd_ext.events import region
from hvd_ext.job.closing import close_later
from hvd_ext.job.progress_thread import ProgressThread
from hvd_ext.torch.sync.model_guard import ModelGuard
from hvd_ext.torch.sync.parts import Parts
from hvd_ext.units import counted

if TYPE_CHECKING:
    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.schedules import Rounds as Schedule
    from hvd_ext.torch.parameters import NamedParameters

State = dict[str, dict[int, torch.Tensor]]


class Rounds:
    """The steps of one optimizer between two exchanges of weights, and these exchanges.

    Attributes:
        steps: steps of this round so far; if there are any, weights differ between nodes.
    """

    def __init__(
        self, schedule: Schedule, named_parameters: NamedParameters, config: ArenaConfig
    ) -> None:
        """Make the exchange; collective over the world.

        Args:
            schedule: how long a round is, and what ends it.
            named_parameters: those that are trained; the same on all ranks.
            config: how they are exchanged, by several nodes.
        """
        self.steps = 0
        topology = config.topology
        self._schedule, self._format = schedule, config.format
        self._nodes = topology.cross.size
        self._cross, self._world = topology.cross, topology.world
        self._parts = Parts(named_parameters, topology.node)
        # The weights at the round's begin, the nodes' distance, and the outer optimizer's momentum.
        self._start, self._start_of = self._parts.memory()
        self._moved, self._moved_of = self._parts.memory()
        self._momentum, self._momentum_of = self._parts.memory()
        buckets = self._parts.layout.buckets
        shards = [(b.offset_bytes, b.offset_bytes + b.message_bytes) for b in buckets]
        self._shards = shards
        memories = [self._moved[begin:end] for begin, end in shards]
        self._channels = Channels(config, "weights", buckets, shards, memories)
        # A dropped optimizer must leave no threads, which would outlive MPI.
        self._close = weakref.finalize(self, close_later, ProgressThread(), [self._channels])
        self._close.atexit = False
        rounds = weakref.ref(self)

        def differ() -> bool:
            owner = rounds()
            return owner is not None and owner.steps > 0

        self._guard = ModelGuard(self._parts.parameters, differ)

    def begin_step(self) -> None:
        """Prepare an optimizer's step: note the weights with which a round begins."""
        if self.steps == 0:
            for parameter, start in zip(self._parts.parameters, self._start_of, strict=True):
                start.copy_(self._parts.own(parameter, parameter.detach()))

    def end_step(self) -> None:
        """Finish an optimizer's step: end the round if it is long enough, which is collective."""
        self.steps += 1
        if self.steps >= self._schedule.steps:
            self.end()

    def end(self) -> None:
        """Make all nodes continue with the same weights; collective, no change between rounds.

        Raises:
            StallError: ranks did not reach this; the job ends.
        """
        if self.steps == 0:
            return
        with region("exposed", kind="communication"), torch.no_grad(), self._channels.watched():
            self._exchange()
            self._average_norms()
        self.steps = 0

    def differ_in(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether nodes have different values in any of these tensors, or in their replacements."""
        places = {p.data_ptr() for p in self._parts.parameters}
        return self.steps > 0 and any(tensor.data_ptr() in places for tensor in tensors)

    def average(self, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> None:
        """Make all nodes continue with the mean inner optimizer state; collective.

        Values of the parameter's shape are averaged; others are the same on all nodes.
        """
        with self._channels.watched():
            for parameter in self._parts.parameters:
                for _, value in sorted(state.get(parameter, {}).items()):
                    if torch.is_tensor(value) and value.shape == parameter.shape:
                        own = self._parts.own(parameter, value).contiguous()
                        value.copy_(self._parts.gather(parameter, self._mean(own)))

    def state(self) -> State:
        """The state of the next round, besides weights; collective between two rounds.

        Returns: By name, the whole state of each parameter by its number; the same on every rank.
        """
        found = {"momentum": self._whole(self._momentum_of)}
        if self._format.has_residual:
            unsent, of_parameters = self._parts.memory()
            with self._channels.watched():
                for (begin, end), total in zip(self._shards, self._channels.drain(), strict=True):
                    if total is not None:
                        unsent[begin:end] = total.view(np.uint8)
            found["residuals"] = self._whole(of_parameters)
        return found

    def keep(self, state: State) -> None:
        """Resume from the result of `state`, of this job or another; the same on all ranks."""
        self.steps = 0
        self._take_in(state.get("momentum", {}), self._momentum_of)
        unsent, of_parameters = self._parts.memory()
        self._take_in(state.get("residuals", {}), of_parameters)
        for (begin, end), residual in zip(self._shards, self._channels.residuals, strict=True):
            if residual is not None:
                np.divide(unsent[begin:end].view(np.float32), self._nodes, out=residual)

    def explain(self) -> str:
        """Report when weights are exchanged, and the progress of this round."""
        s = self._schedule
        outer = (
            ""
            if s.outer_lr == 1.0 and not s.outer_momentum
            else (f", by an outer step with rate {s.outer_lr:g} and momentum {s.outer_momentum:g}")
        )
        return (
            f"sync: {s}: nodes exchange weights after {counted(s.steps, 'step')}{outer}; taken so "
            "far: "
            f"{self.steps}\nbetween nodes: {self._format.name}"
        )

    def close(self) -> None:
        """End the threads after the exchanges in flight."""
        self._close()

    def _exchange(self) -> None:
        parts = zip(self._parts.parameters, self._start_of, self._moved_of, strict=True)
        for parameter, start, moved in parts:
            torch.sub(start, self._parts.own(parameter, parameter).to(start.dtype), out=moved)
        for index in range(len(self._shards)):
            self._channels.take(index, functools.partial(self._step, index))
        self._channels.wait()
        for parameter, start in zip(self._parts.parameters, self._start_of, strict=True):
            parameter.copy_(self._parts.gather(parameter, start.to(parameter.dtype)))

    def _step(self, index: int) -> None:
        """Take the outer optimizer's step on the bucket whose sum has arrived."""
        dtype = self._parts.layout.buckets[index].dtype
        begin, end = self._shards[index]
        weights, moved, momentum = (
            memory[begin:end].view(dtype) for memory in (self._start, self._moved, self._momentum)
        )
        moved /= self._nodes
        if self._schedule.outer_momentum:
            momentum *= self._schedule.outer_momentum
            momentum += moved
            moved += momentum * self._schedule.outer_momentum
        moved *= self._schedule.outer_lr
        weights -= moved

    def _average_norms(self) -> None:
        """Make all ranks continue with the mean of the norms' statistics."""
        buffers = self._guard.statistics()
        numbers = [b.numel() for b in buffers]
        if len({tuple(of) for of in self._world.allgather(numbers)}) > 1:
            raise MismatchError(
                "ranks used different batch norms in this round: call the same model on every rank"
            )
        if buffers:
            total = torch.cat([b.double().flatten() for b in buffers]).numpy()
            direct.allreduce(self._world, total, OPERATIONS["sum"])
            means = torch.from_numpy(total / self._world.size).split(numbers)
            for buffer, mean in zip(buffers, means, strict=True):
                buffer.copy_(mean.view(buffer.shape))

    def _mean(self, own: torch.Tensor) -> torch.Tensor:
        """Average this rank's part over the nodes."""
        total = own.to(torch.promote_types(own.dtype, torch.float32)).clone()
        direct.allreduce(self._cross, total.numpy(), OPERATIONS["sum"])
        return (total / self._nodes).to(own.dtype)

    def _whole(self, parts: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        return {
            index: self._parts.gather(parameter, part)
            for index, (parameter, part) in enumerate(
                zip(self._parts.parameters, parts, strict=True)
            )
        }

    def _take_in(self, whole: Mapping[int, torch.Tensor], parts: list[torch.Tensor]) -> None:
        for index, (parameter, part) in enumerate(zip(self._parts.parameters, parts, strict=True)):
            if index in whole:
                part.copy_(self._parts.own(parameter, whole[index]))
            else:
                part.zero_()
