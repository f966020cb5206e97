"""An optimizer's state and options, sent from one rank to all, and written in place.

A schedule that was made before wrapping has the same groups, and a program may hold the same
tensors. So both stay the same objects, as in Horovod. State keeps the root's dtypes, which need not
be those of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hvd_ext.errors import UsageError
from hvd_ext.torch import horovods

# State by parameter; a class may have further entries under other keys.
State = MutableMapping[Any, Any]


def make_state(optimizer: Any, model: torch.nn.Module | None) -> None:
    """Take a step with zero gradients that exchanges nothing, as Horovod does to make state.

    Args:
        optimizer: wrapped or not.
        model: says which of the parameters of torch.optim.SGD have sparse gradients.
    """
    kinds = torch.nn.Embedding, torch.nn.EmbeddingBag
    embeddings = [m for m in (model.modules() if model else ()) if isinstance(m, kinds)]
    sparse = {
        id(m.weight) for m in embeddings if m.sparse and isinstance(optimizer, torch.optim.SGD)
    }
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.requires_grad:
                zeros = torch.zeros_like(p)
                is_sparse = isinstance(optimizer, torch.optim.SparseAdam) or id(p) in sparse
                p.grad = zeros.to_sparse() if is_sparse else zeros
    wrapped = type(optimizer).__module__ == horovods.WRAPPED_MODULE
    # The base of a wrapped optimizer's class has a step that exchanges nothing.
    plain: Any = super(type(optimizer), optimizer) if wrapped else optimizer
    plain.step()


def broadcast_into(
    groups: Sequence[dict[str, Any]],
    state: State,
    root_rank: int,
    broadcast_tensors: Callable[[list[tuple[str, Any]], int], None],
) -> None:
    """Give every rank the root's state and options.

    Args:
        groups: the optimizer's param_groups.
        state: state of whole parameters.
        root_rank: the rank whose state all others get.
        broadcast_tensors: gives every rank the root's tensors, in place.

    Raises:
        UsageError: the groups of this rank's optimizer differ from the root's.
    """
    parameters = [p for group in groups for p in group["params"]]
    numbers: dict[int, Any] = {id(p): number for number, p in enumerate(parameters)}
    held = {numbers.get(id(key), key): value for key, value in state.items()}
    lengths = [len(group["params"]) for group in groups]
    options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    tensors: list[torch.Tensor] = []
    frame = (lengths, _take_out(options, tensors), _take_out(held, tensors))
    frame = horovods.broadcast_object(frame, root_rank, name="optimizer_state")
    is_root = horovods.rank() == root_rank
    if not is_root:
        tensors = []
        options = _put_back(frame[1], options, None, tensors)
        places: dict[Any, Any] = dict(enumerate(parameters))
        held = {
            key: _put_back(value, held.get(key), places.get(key), tensors)
            for key, value in frame[2].items()
        }
    pairs = [(f"optimizer_state.{i}", tensor) for i, tensor in enumerate(tensors)]
    broadcast_tensors(pairs, root_rank)
    if is_root:
        return
    if lengths != frame[0]:
        raise UsageError(
            f"broadcast_optimizer_state() of groups of {lengths} parameters, where those of rank "
            f"{root_rank} have {frame[0]}: make the same optimizer on all ranks"
        )
    for group, theirs in zip(groups, options, strict=True):
        group.update(theirs)
    for key in [key for key in state if numbers.get(id(key), key) not in held]:
        del state[key]
    for key, theirs in held.items():
        own = places.get(key, key)
        if isinstance(theirs, dict) and isinstance(state.get(own), dict):
            state[own].clear()
            state[own].update(theirs)
        else:
            state[own] = theirs


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Takes the place of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_cpu: bool

    def place(self, held: Any, parameter: torch.Tensor | None) -> torch.Tensor:
        """Return the tensor to write to: the one that this rank has there, if it fits."""
        if torch.is_tensor(held) and held.shape == self.shape and held.dtype == self.dtype:
            return held
        if parameter is None:
            return torch.zeros(self.shape, dtype=self.dtype)
        device = torch.device("cpu") if self.on_cpu else parameter.device
        if parameter.shape == self.shape:  # with its strides
            return torch.zeros_like(parameter, dtype=self.dtype, device=device)
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


def _take_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Copy nested dicts and sequences without their tensors, which go into the list."""
    if torch.is_tensor(value) and value.layout == torch.strided:
        tensors.append(value.detach())
        return _Tensor(tuple(value.shape), value.dtype, value.device.type == "cpu")
    if isinstance(value, dict):
        return {key: _take_out(inner, tensors) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_out(inner, tensors) for inner in value)
    return value


def _put_back(
    value: Any, held: Any, parameter: torch.Tensor | None, tensors: list[torch.Tensor]
) -> Any:
    """Reverse `_take_out`, with tensors that will be filled, which go into the list.

    Args:
        value: the root's value, from `_take_out`.
        held: this rank's value, whose tensors are used if they fit.
        parameter: the parameter of this state.
        tensors: list of the tensors to fill.
    """
    if isinstance(value, _Tensor):
        place = value.place(held, parameter)
        tensors.append(place.detach())
        return place
    if isinstance(value, dict):
        own = held if isinstance(held, dict) else {}
        return {k: _put_back(v, own.get(k), parameter, tensors) for k, v in value.items()}
    if type(value) in (list, tuple):
        of = held if type(held) in (list, tuple) else ()
        padded = [*of, *[None] * len(value)]
        return type(value)(
            _put_back(v, own, parameter, tensors) for v, own in zip(value, padded, strict=False)
        )
    return value
