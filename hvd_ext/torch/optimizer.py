"""DistributedOptimizer over the gradient arena, or Horovod's own, with the reason."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import horovod.torch as horovod
import torch
from horovod.torch.optimizer import DistributedOptimizer as HorovodsOptimizer

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.shm.regions import WindowError
from hvd_ext.torch import fallback, lifecycle
from hvd_ext.torch.arenas import ArenaFactory
from hvd_ext.torch.background import lower_thread_priority
from hvd_ext.torch.parameters import pair_names, trainable
from hvd_ext.torch.reducer import Reducer
from hvd_ext.torch.sparse import SparseExchange

log = logging.getLogger("hvd_ext")

# Horovod's broadcast_optimizer_state knows a wrapped optimizer by its module, and
# then fills in missing state by the step of the class it wraps.
_HOROVODS_MODULE = "horovod.torch.optimizer"


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = horovod.Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = horovod.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = horovod.global_process_set,
) -> torch.optim.Optimizer:
    """Wrap an optimizer so that its gradients are reduced over all ranks.

    Takes what `horovod.torch.DistributedOptimizer` takes. Gradients are reduced in
    the arena while backward goes on. Where that does not serve what is asked for,
    Horovod's own optimizer is returned, and rank 0 logs the reason.

    `groups` has no effect here: gradients are always reduced in buckets. Nor has
    `gradient_predivide_factor`: 16-bit gradients are summed in 32 bits, so there is
    no overflow to guard against.

    Raises:
        ValueError: as Horovod does, for names that are missing or not unique.
        StallError: ranks did not reach this in time; names them.
        MismatchError: ranks have different parameters; names the first.
    """
    # A generator of names must be there for a second reader.
    named = None if named_parameters is None else list(named_parameters)
    reason = fallback.reason_for_horovods(optimizer, compression, op, sparse_as_dense, process_set)
    reducer: Reducer | None = None
    pairs: list[tuple[str, torch.nn.Parameter]] = []
    if reason is None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        if gradient_predivide_factor != 1.0 and op != horovod.Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        pairs = pair_names(optimizer, named)
        if horovod.size() > 1:
            reducer, reason = _open(pairs, op, backward_passes_per_step)
    if reason is not None:
        if horovod.rank() == 0:
            log.warning("hvd_ext: falling back to Horovod's DistributedOptimizer: %s", reason)
        return HorovodsOptimizer(
            optimizer,
            named,
            compression,
            backward_passes_per_step,
            op,
            gradient_predivide_factor,
            num_groups,
            groups,
            sparse_as_dense,
            process_set,
        )
    wrapped = _distributed_class(type(optimizer))
    new = wrapped.__new__(wrapped)
    # State and parameter groups are shared, not copied: an optimizer that was loaded
    # from a checkpoint keeps what it has. `step` is there on the instance only when a
    # learning rate schedule has put its counter around it: that one calls the old step.
    new.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    new._attach(reducer, op, backward_passes_per_step, {p: name for name, p in pairs})
    return new


DistributedOptimizer.__module__ = _HOROVODS_MODULE


def _distributed_class(base: Any) -> Any:
    class Distributed(base):
        __module__ = _HOROVODS_MODULE

        def _attach(
            self,
            reducer: Reducer | None,
            op: Any,
            passes: int,
            names: dict[torch.nn.Parameter, str],
        ) -> None:
            self._reducer = reducer
            self._parameter_names = names  # as Horovod's has it
            self._synchronized = False
            self._should_synchronize = True
            self.op = op
            self.backward_passes_per_step = passes

        def set_backward_passes_per_step(self, passes: int) -> None:
            self.backward_passes_per_step = passes
            if self._reducer:
                self._reducer.set_passes_per_step(passes)

        def explain(self) -> str:
            if self._reducer:
                return self._reducer.explain()
            return "one rank: nothing is exchanged"

        def synchronize(self) -> None:
            if self._reducer:
                self._reducer.synchronize()
            self._synchronized = True

        @contextmanager
        def skip_synchronize(self) -> Iterator[None]:
            self._should_synchronize = False
            try:
                yield
            finally:
                self._should_synchronize = True

        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            if self._should_synchronize:
                if self._synchronized:
                    # Horovod's words, by which scripts filter it.
                    warnings.warn(
                        "optimizer.step() called without optimizer.skip_synchronize() context "
                        "after optimizer.synchronize(). The gradients are exchanged again.",
                        stacklevel=2,
                    )
                self.synchronize()
            self._synchronized = False
            result = super().step(closure)
            if self._reducer and self._reducer.in_flight:
                raise UsageError(
                    "a closure that calls backward() makes gradients that no rank exchanges: call "
                    "backward() before step(), as Horovod asks for, and pass no closure"
                )
            return result

        # Or Optimizer.__setstate__ (by load_state_dict) would wrap it, and the hooks, which
        # the step of the class below calls, would be called twice.
        step.hooked = True  # type: ignore[attr-defined]

        def zero_grad(self, set_to_none: bool = True) -> None:
            if self._reducer and self._reducer.in_flight:
                raise AssertionError(
                    "optimizer.zero_grad() between backward() and step() or synchronize() would "
                    "wipe gradients while they are exchanged: call it before backward()"
                )
            super().zero_grad(set_to_none)

        def load_state_dict(self, state_dict: Any) -> None:
            if self._reducer:
                self._reducer.reset()
            self._synchronized = False
            self._should_synchronize = True
            super().load_state_dict(state_dict)

        def add_param_group(self, param_group: dict[str, Any]) -> None:
            super().add_param_group(param_group)
            group = len(self.param_groups) - 1
            if self._reducer and (reason := fallback.reason_against_memory(self.param_groups)):
                raise UsageError(f"a group that cannot be exchanged: {reason}")
            pairs = [
                (f"allreduce.noname.{group}.{i}", p)
                for i, p in enumerate(self.param_groups[group]["params"])
            ]
            if self._reducer:
                try:
                    self._reducer.add(trainable(pairs))
                except WindowError as error:
                    raise HvdExtError(
                        f"no memory for the gradients of a new group: {error}"
                    ) from error
            self._parameter_names.update({p: name for name, p in pairs})

    Distributed.__name__ = Distributed.__qualname__ = base.__name__
    return Distributed


def _open(
    pairs: list[tuple[str, torch.nn.Parameter]], op: Any, passes: int
) -> tuple[Reducer | None, str | None]:
    """Make the reducer; the second value is why it could not be made, the same on every rank."""
    device = pairs[0][1].device if pairs else torch.device("cpu")
    try:
        reducer = Reducer(trainable(pairs), passes, ArenaFactory(op, device), SparseExchange(op))
    except WindowError as error:
        return None, str(error)
    lifecycle.add(reducer)
    lower_thread_priority()
    return reducer, None
