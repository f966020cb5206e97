"""A rank's share of a sharded optimizer: its parts of the parameters and their state.

The user's optimizer class works on one-dimensional parts of the parameters in the arena's memory,
and on the parts of the gradients that this rank has summed. The class makes state only for those
parts. An optimizer makes several passes over a part, so parts are short enough for the cache:
memory is then read and written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from hvd_ext.arena.layout import parts
from hvd_ext.errors import MismatchError
from hvd_ext.torch.parameters import in_memory_order, placed_as
from hvd_ext.torch.sharded.elementwise import Tried, on_other_parameters
from hvd_ext.torch.sharded.gradient import ShardedGradient
from hvd_ext.torch.torch_internals import STEP_HOOKS, holders_of, unhooked_step

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.arena.sharded import ShardedArena
    from hvd_ext.torch.reduction.slot import GradientSlot

State = dict[str, Any]
# Attributes that the optimizer of parts has for itself.
_APART = {"state", "param_groups", *STEP_HOOKS}
_APART |= {"step"}  # a schedule's, around the step of the user's optimizer
# Of a part: with its gradient and its state it fits the cache of the core that updates it.
_PART_BYTES = 1 << 20


@dataclass(eq=False)
class Part:
    """A part of one parameter that this rank updates.

    Attributes:
        slot: the parameter, and its whole gradient.
        begin, end: the elements, in memory order.
        parameter: these elements of the parameter, of shape (end - begin,).
        grad: these elements of the gradient.
    """

    slot: GradientSlot
    begin: int
    end: int
    parameter: torch.Tensor
    grad: torch.Tensor


class Shards:
    """This rank's parts of the parameters of one optimizer.

    Attributes:
        changes_gradients: whether the optimizer's step may write to gradients.
        keep_state: whether the parts keep the optimizer's state; otherwise it is forgotten.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        make: Any,
        tried: Tried,
        node: MPI.Comm,
    ) -> None:
        """Begin without an exchange.

        Args:
            optimizer: the user's optimizer; its parameter groups keep whole parameters.
            make: its class.
            tried: result of its test.
            node: the ranks that have the other parts.
        """
        self.changes_gradients = tried.changes_gradients
        self.keep_state = False
        self._per_element = tried.state_per_element
        self._inner = on_other_parameters(optimizer, make, [])
        self._apart = _APART
        self._step = unhooked_step(make)
        self._node = node
        self._parts: dict[int, list[Part]] = {}  # by the id of the slot, in the order of the slots
        self._slots: list[GradientSlot] = []
        self._hidden: list[ShardedGradient] = []  # one for each slot
        # With the address, and the number of parameters in the memory.
        self._homes: list[tuple[torch.nn.Parameter, torch.Tensor, int, int]] = []
        self._lengths: list[int] = []  # of the groups, when the parts were last grouped

    def keep_apart(self, attributes: Iterable[str]) -> None:
        """Keep the attributes of the user's optimizer, unless its class made them."""
        self._apart = _APART | (set(attributes) - vars(self._inner).keys())

    def place(self, arena: ShardedArena, slots: Sequence[GradientSlot]) -> None:
        """Move parameters into the arena's memory, in the order of its layout's parameters."""
        self._slots.extend(slots)
        self._hidden.extend(ShardedGradient(slot.name, slot.parameter) for slot in slots)
        self._lengths = []
        for bucket, shard_bytes in zip(arena.layout.buckets, arena.shards, strict=True):
            dtype = getattr(torch, bucket.dtype)
            for span in bucket.spans:
                if span.count:
                    home = _tensor(arena.parameters, dtype, span.offset_bytes, span.count)
                    self._move(slots[span.parameter].parameter, home)
            # Threads share a part.
            most = _PART_BYTES * torch.get_num_threads() // dtype.itemsize
            for span in bucket.spans if self._node.rank == 0 else ():
                if not span.count:  # an empty parameter has no part, but has state
                    slot, empty = slots[span.parameter], torch.empty(2, 0, dtype=dtype)
                    self._parts[id(slot)] = [Part(slot, 0, 0, *empty)]
            for span, begin, end in parts(bucket, shard_bytes):
                slot = slots[span.parameter]
                self._parts[id(slot)] = own = []
                for first in range(begin, end, most):
                    at, count = span.offset_bytes + first * dtype.itemsize, min(most, end - first)
                    parameter = _tensor(arena.parameters, dtype, at, count)
                    grad = _tensor(arena.data, dtype, at, count)
                    own.append(Part(slot, first, first + count, parameter, grad))

    def shared(self) -> list[int]:
        """Return the slots of parameters whose memory the program also has in another tensor."""
        of = {id(slot.parameter): slot.index for slot in self._slots}
        return [of[id(p)] for p, home, _, holders in self._homes if holders_of(home) > holders]

    def place_anew(self, place: Callable[[], None]) -> None:
        """Call `place` for all slots, and give each rank the state of its new parts.

        A collective of the node.
        """
        slots, old = self._slots, self._parts
        kept = (self._slots, self._hidden, self._parts, self._homes)
        self._slots, self._hidden, self._parts, self._homes = [], [], {}, []
        place()
        if not self._slots:  # no memory for another arena
            self._slots, self._hidden, self._parts, self._homes = kept
            return
        for slot in slots:  # one by one, so that no rank ever holds the whole state
            before = old.get(id(slot), [])
            whole = self._gather(slot, before)
            for part in before:
                self._inner.state.pop(part.parameter, None)
            if whole:
                self._keep(slot, whole)

    def bring_home(self) -> None:
        """Move parameters that the user has moved back into the arena's memory."""
        for parameter, home, address, _ in self._homes:
            if parameter.data_ptr() != address:
                home.copy_(parameter.data)
                parameter.data = home

    def update(
        self,
        optimizer: torch.optim.Optimizer,
        whole: dict[Any, State],
        adopt: Callable[[], None],
        closure: Callable[[], Any] | None,
    ) -> Any:
        """Take the optimizer's step on this rank's parts; returns the result of the class's step.

        Args:
            optimizer: optimizer of whole parameters, whose options and attributes are used.
            whole: newer state of whole parameters, which is taken from it.
            adopt: brings the user's changes of gradients into the arena.
            closure: closure of the class's step.
        """
        if not self.keep_state:
            self.forget_state()
        self._take(whole)
        groups = optimizer.param_groups
        self._group(groups)
        inner = vars(self._inner)
        self._share_attributes(vars(optimizer), inner)
        before = inner.copy()

        def take_gradients() -> None:
            adopt()
            for part in self._every_part():
                part.parameter.grad = None if part.slot.parameter.grad is None else part.grad

        def closure_first() -> Any:
            assert closure is not None
            result = closure()
            take_gradients()
            return result

        take_gradients()
        result = self._step(self._inner, closure and closure_first)
        self.keep_state = True
        changed = {k: v for k, v in inner.items() if k not in before or before[k] is not v}
        self._share_attributes(changed, vars(optimizer))
        for own, theirs in zip(self._inner.param_groups, groups, strict=True):
            # Some classes count steps there.
            theirs.update((k, v) for k, v in own.items() if k != "params")
        return result

    def updated(self) -> None:
        """Mark all parameters as changed."""
        torch.autograd.graph.increment_version([slot.parameter for slot in self._slots])

    def hide_gradients(self) -> None:
        """Put placeholders into `.grad`, so that nothing uses it as whole sums."""
        for slot, hidden in zip(self._slots, self._hidden, strict=True):
            if slot.parameter.grad is not None:
                slot.parameter.grad = hidden

    @property
    def state(self) -> dict[torch.Tensor, State]:
        """Return the state of this rank's parts of the parameters."""
        return self._inner.state

    def forget_state(self) -> None:
        """Forget the state of all parameters."""
        self._inner.state.clear()
        self.keep_state = False

    def forget(self, parameter: Any) -> bool:
        """Forget the state of a parameter; returns whether the parameter is this optimizer's."""
        slot = next((slot for slot in self._slots if slot.parameter is parameter), None)
        if slot is None:
            return False
        for part in self._parts.get(id(slot), []):
            self._inner.state.pop(part.parameter, None)
        return True

    def whole_state(self) -> Iterator[tuple[torch.nn.Parameter, State]]:
        """Gather the state of each parameter that has any; a collective of the node."""
        for slot in self._slots:
            if whole := self._gather(slot, self._parts.get(id(slot), [])):
                yield slot.parameter, whole

    def clip(self, max_norm: float, norm_type: float, error_if_nonfinite: bool) -> torch.Tensor:
        """Clip as torch.nn.utils.clip_grad_norm_ for whole gradients; a collective of the node."""
        grads = [p.grad for p in self._every_part() if p.slot.parameter.grad is not None]
        norms = [torch.linalg.vector_norm(g, norm_type, dtype=torch.float64) for g in grads]
        own = torch.linalg.vector_norm(torch.stack(norms), norm_type).item() if norms else 0.0
        # Gathered, so that the order of the sum is the same on every rank.
        everyones = torch.tensor(self._node.allgather(own), dtype=torch.float64)
        norm = torch.linalg.vector_norm(everyones, norm_type)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"the gradients' norm of order {norm_type} is {norm.item()}: they cannot be "
                "clipped; error_if_nonfinite=False lets them be scaled all the same"
            )
        dtypes = {s.parameter.dtype for s in self._slots if s.parameter.grad is not None}
        norm = norm.to(reduce(torch.promote_types, dtypes) if dtypes else torch.float32)
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)  # stays NaN, as torch's does
        for grad in grads:
            grad.mul_(factor)
        self.hide_gradients()  # other ranks' parts are not clipped here
        return norm

    def _move(self, parameter: torch.nn.Parameter, home: torch.Tensor) -> None:
        home = placed_as(parameter, home)
        home.copy_(parameter.data)
        parameter.data = home
        self._homes.append((parameter, home, home.data_ptr(), holders_of(home)))

    def _share_attributes(self, of: dict[str, Any], to: dict[str, Any]) -> None:
        """Copy attributes that a class, or a script, has set on an optimizer to the other one."""
        to.update((k, v) for k, v in of.items() if k not in self._apart)

    def _take(self, whole: dict[Any, State]) -> None:
        if not whole:
            return
        for slot in self._slots:
            if state := whole.pop(slot.parameter, None):
                self._keep(slot, state)

    def _group(self, groups: Sequence[dict[str, Any]]) -> None:
        lengths = [len(group["params"]) for group in groups]
        if lengths != self._lengths:
            of = {id(p): i for i, group in enumerate(groups) for p in group["params"]}
            members: list[list[torch.Tensor]] = [[] for _ in groups]
            for part in self._every_part():
                members[of[id(part.slot.parameter)]].append(part.parameter)
            self._inner.param_groups = [{"params": parameters} for parameters in members]
            self._lengths = lengths
        for own, theirs in zip(self._inner.param_groups, groups, strict=True):
            own.update((k, v) for k, v in theirs.items() if k != "params")

    def _every_part(self) -> Iterator[Part]:
        return chain.from_iterable(self._parts.values())

    def _gather(self, slot: GradientSlot, own: Sequence[Part]) -> State:
        states = [self._inner.state.get(part.parameter) for part in own]
        everyones = list(chain.from_iterable(self._node.allgather(states)))
        held = [state for state in everyones if state]
        if not held:
            return {}
        if len(held) < len(everyones):
            raise MismatchError(
                f"some ranks have forgotten their part of the state of {slot.name!r}, and others "
                "have not: change optimizer.state on all ranks alike"
            )
        whole: State = {}
        for key, value in held[0].items():
            whole[key] = value
            if isinstance(value, torch.Tensor) and value.ndim == 1:
                every = torch.cat([state[key] for state in held])
                whole[key] = placed_as(slot.parameter, every)
        return whole

    def _keep(self, slot: GradientSlot, whole: State) -> None:
        for part in self._parts.get(id(slot), []):
            self._inner.state[part.parameter] = self._cut(whole, part)

    def _cut(self, whole: State, part: Part) -> State:
        parameter = part.slot.parameter
        cut: State = {}
        for key, value in whole.items():
            if not isinstance(value, torch.Tensor):
                cut[key] = value
            # Every state tensor has the shape of a parameter without dimensions.
            elif value.shape != parameter.shape or not (value.ndim or key in self._per_element):
                cut[key] = value.clone()
            else:
                cut[key] = in_memory_order(parameter, value)[part.begin : part.end].clone()
        return cut


def _tensor(memory: Any, dtype: torch.dtype, offset_bytes: int, count: int) -> torch.Tensor:
    # With a separate storage, so that saving or copying it includes no other data.
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset_bytes)
