"""DistributedOptimizer over the gradient arena, or Horovod's own, with the reason."""

from __future__ import annotations

import atexit
import logging
import os
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import horovod.torch as horovod
import torch
from horovod.torch.optimizer import DistributedOptimizer as HorovodsOptimizer

from hvd_ext import settings
from hvd_ext.arena.cuda.arena import SERVED as DEVICE_DTYPES
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.torch import runtime
from hvd_ext.torch.reducer import Gradients

log = logging.getLogger("hvd_ext")

# Horovod's broadcast_optimizer_state knows a wrapped optimizer by its module, and
# then fills in missing state by the step of the class it wraps.
_HOROVODS_MODULE = "horovod.torch.optimizer"

_horovods_shutdown, _horovods_join = horovod.shutdown, horovod.join
_open_gradients: weakref.WeakSet[Gradients] = weakref.WeakSet()


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
        StallError: ranks did not come here in time; names them.
        MismatchError: ranks have different parameters; names the first.
    """
    # A generator of names must be there for a second reader.
    named = None if named_parameters is None else list(named_parameters)
    reason = _unserved(optimizer, compression, op, sparse_as_dense, process_set)
    gradients: Gradients | None = None
    pairs: list[tuple[str, torch.nn.Parameter]] = []
    if reason is None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        if gradient_predivide_factor != 1.0 and op != horovod.Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        pairs = _pair_names(optimizer, named)
        if horovod.size() > 1:
            gradients, reason = _open(pairs, op, backward_passes_per_step)
    if reason is not None:
        if horovod.rank() == 0:
            log.warning("hvd_ext: DistributedOptimizer is Horovod's own, because %s", reason)
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
    new._attach(gradients, op, backward_passes_per_step, {id(p): name for name, p in pairs})
    return new


DistributedOptimizer.__module__ = _HOROVODS_MODULE


def _distributed_class(base: Any) -> Any:
    class Distributed(base):
        __module__ = _HOROVODS_MODULE

        def _attach(
            self, gradients: Gradients | None, op: Any, passes: int, names: dict[int, str]
        ) -> None:
            self._gradients = gradients
            self._names = names
            self._synchronized = False
            self._should_synchronize = True
            self.op = op
            self.backward_passes_per_step = passes

        def set_backward_passes_per_step(self, passes: int) -> None:
            self.backward_passes_per_step = passes
            if self._gradients:
                self._gradients.set_passes_per_step(passes)

        def explain(self) -> str:
            if self._gradients:
                return self._gradients.explain()
            return "one rank: nothing is exchanged"

        def synchronize(self) -> None:
            if self._gradients:
                self._gradients.synchronize()
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
                    warnings.warn(
                        "optimizer.step() after optimizer.synchronize() exchanges the gradients "
                        "again: call it inside `with optimizer.skip_synchronize():`",
                        stacklevel=2,
                    )
                self.synchronize()
            self._synchronized = False
            result = super().step(closure)
            if self._gradients and self._gradients.in_flight:
                raise UsageError(
                    "a closure that calls backward() makes gradients that no rank exchanges: call "
                    "backward() before step(), as Horovod asks for, and pass no closure"
                )
            return result

        # Or Optimizer.__setstate__ (by load_state_dict) would wrap it, and the hooks, which
        # the step of the class below calls, would be called twice.
        step.hooked = True  # type: ignore[attr-defined]

        def zero_grad(self, set_to_none: bool = True) -> None:
            if self._gradients and self._gradients.in_flight:
                raise AssertionError(
                    "optimizer.zero_grad() between backward() and step() or synchronize() would "
                    "wipe gradients while they are exchanged: call it before backward()"
                )
            super().zero_grad(set_to_none)

        def load_state_dict(self, state_dict: Any) -> None:
            if self._gradients:
                self._gradients.reset()
            self._synchronized = False
            self._should_synchronize = True
            super().load_state_dict(state_dict)

        def add_param_group(self, param_group: dict[str, Any]) -> None:
            super().add_param_group(param_group)
            group = len(self.param_groups) - 1
            if self._gradients and (reason := _unserved_memory(self.param_groups)):
                raise UsageError(f"a group that cannot be exchanged: {reason}")
            pairs = [
                (f"allreduce.noname.{group}.{i}", p)
                for i, p in enumerate(self.param_groups[group]["params"])
            ]
            if self._gradients:
                reason = runtime.add(self._gradients, [(n, p) for n, p in pairs if p.requires_grad])
                if reason:
                    raise HvdExtError(f"no memory for the gradients of a new group: {reason}")
            self._names.update({id(p): name for name, p in pairs})

    Distributed.__name__ = Distributed.__qualname__ = base.__name__
    return Distributed


def _open(
    pairs: list[tuple[str, torch.nn.Parameter]], op: Any, passes: int
) -> tuple[Gradients | None, str | None]:
    """Build the arena; the second value is why it could not be built."""

    def reduce_sparse(grad: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:
        handle: Callable[[], torch.Tensor] = horovod.sparse_allreduce_async(grad, name=name, op=op)
        return handle

    device = pairs[0][1].device if pairs else torch.device("cpu")
    gradients = Gradients(passes, horovod.size(), runtime.Arenas(op, device), reduce_sparse)
    reason = runtime.add(gradients, [(n, p) for n, p in pairs if p.requires_grad])
    if reason is not None:
        gradients.close()
        return None, reason
    if not _open_gradients:
        # Runs before Horovod's own, which was registered earlier and ends MPI.
        atexit.register(_close_all)
    _open_gradients.add(gradients)
    return gradients, None


def join(device: int = -1) -> int:
    """Horovod's join, where no optimizer exchanges its gradients in the arena.

    Raises:
        UsageError: one does: ranks take the same number of steps there.
    """
    if _open_gradients:
        raise UsageError(
            "hvd.join() does not serve hvd_ext's DistributedOptimizer, whose ranks take the same "
            "number of steps: give every rank as many batches, or import horovod.torch"
        )
    return int(_horovods_join(device))


def shutdown() -> None:
    """End Horovod, after what hvd_ext runs beside it: Horovod may end MPI."""
    _close_all()
    _horovods_shutdown()


def _close_all() -> None:
    for gradients in list(_open_gradients):
        gradients.close()
    _open_gradients.clear()


def _unserved(
    optimizer: torch.optim.Optimizer,
    compression: Any,
    op: Any,
    sparse_as_dense: bool,
    process_set: Any,
) -> str | None:
    """Say why the arena does not serve this, or None if it does."""
    if op not in (horovod.Average, horovod.Sum):
        return "the arena reduces by Average and Sum only"
    if compression is not horovod.Compression.none:
        return "gradients are to be compressed"
    if process_set is not horovod.global_process_set:
        return "a process set is to be used"
    if sparse_as_dense:
        return "sparse_as_dense is asked for"
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        return "the job is elastic"
    return _unserved_memory(optimizer.param_groups) or runtime.unserved()


def _unserved_memory(groups: Sequence[dict[str, Any]]) -> str | None:
    """Say why the arena cannot hold these groups' gradients, or None if it can."""
    parameters = [p for group in groups for p in group["params"]]
    devices = sorted({str(p.device) for p in parameters})
    if len(devices) > 1:
        return f"parameters are on {' and '.join(devices)}"
    served: Collection[str] = DTYPES
    if devices and devices != ["cpu"]:
        if not devices[0].startswith("cuda"):
            return f"parameters are on {devices[0]}"
        if not settings.device_arena():
            return (
                f"parameters are on {devices[0]}, and hvd_ext's exchange there has never run on a "
                "GPU: HVD_EXT_DEVICE_ARENA=1 tries it"
            )
        served = DEVICE_DTYPES
    for p in parameters:
        if str(p.dtype).removeprefix("torch.") not in served:
            return f"parameters are {p.dtype}, not one of {', '.join(served)}"
    return None


def _pair_names(
    optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.nn.Parameter]] | None
) -> list[tuple[str, torch.nn.Parameter]]:
    """The optimizer's parameters with their names, in the order of its groups."""
    parameters = [
        (f"allreduce.noname.{i}.{j}", p)
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
    ]
    if named is None:
        return parameters
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually "
            "produced by model.named_parameters()."
        )
    duplicates = sorted(name for name, n in Counter(name for name, _ in named).items() if n > 1)
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(duplicates)
        )
    name_of = {id(p): name for name, p in named}
    unnamed = sum(id(p) not in name_of for _, p in parameters)
    if unnamed:
        raise ValueError(
            f"named_parameters was specified, but {unnamed} of the optimizer's parameters are "
            "not in it"
        )
    return [(name_of[id(p)], p) for _, p in parameters]
