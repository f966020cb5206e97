"""DistributedOptimizer over the gradient arena, or Horovod's own, with the reason."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from hvd_ext import variables
from hvd_ext.errors import UsageError
from hvd_ext.schedules import Schedule
from hvd_ext.shm.regions import on_every_rank_of
from hvd_ext.system.process import allow_singleton_mpi
from hvd_ext.torch import fallback, horovods, reducers
from hvd_ext.torch.audit.auditor import Auditor
from hvd_ext.torch.compression import nearest_of_horovods
from hvd_ext.torch.job import background, lifecycle
from hvd_ext.torch.parameters import NamedParameters, pair_names
from hvd_ext.torch.reducers import Made
from hvd_ext.torch.reduction.protocol import Reduces
from hvd_ext.torch.request import Request
from hvd_ext.torch.sharded.elementwise import try_elementwise
from hvd_ext.torch.sharded.shards import Shards
from hvd_ext.torch.sharded.wrapped import ShardedMixin, sharded_class
from hvd_ext.torch.standalone.refused import needs_horovod
from hvd_ext.torch.sync.rounds import Rounds
from hvd_ext.torch.wrapped import DistributedMixin, distributed_class

Named = list[tuple[str, torch.nn.Parameter]] | None
log = logging.getLogger("hvd_ext")


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = None,
    backward_passes_per_step: int = 1,
    op: Any = None,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    *,
    sharded: bool | None = None,
    sync: Schedule | None = None,
    reproducible: int | None = None,
) -> torch.optim.Optimizer:
    """Wrap an optimizer so that its gradients are reduced over all ranks; collective.

    The arguments are those of `horovod.torch.DistributedOptimizer`, and some more. Gradients are
    reduced in the arena while backward continues. If the arena cannot serve a request, Horovod's
    own optimizer is returned, and rank 0 logs the reason.

    Args:
        optimizer: its state and parameter groups are shared with the new one.
        named_parameters: result of `model.named_parameters()`; by default parameters are numbered.
            Names must be the same on all ranks.
        compression: format of gradients between nodes: Horovod's none or fp16, or bf16, int8,
            powersgd(rank) or auto, as attributes of hvd.Compression or as text. Defaults to
            HVD_EXT_COMPRESSION. Within a node nothing is rounded.
        backward_passes_per_step: how many backward passes fill a gradient.
        op: hvd.Average (the default) or hvd.Sum; others are served by Horovod's own optimizer.
        gradient_predivide_factor: has no effect: 16-bit gradients are summed in 32 bits, so
            they cannot overflow.
        num_groups: has no effect: gradients are always reduced in buckets.
        groups: has no effect either.
        sparse_as_dense: whether sparse gradients are made dense for the exchange. SparseAdam's step
            gets them as sparse ones again. Must be the same on all ranks.
        process_set: the ranks that exchange gradients: all by default. Others are served by
            Horovod's own optimizer.
        sharded: whether the ranks of a node share the update: each takes the optimizer's step on
            the part of the parameters whose gradients it has summed, keeps only the state of that
            part, and gives the other ranks the new parameters. Results are bit-identical. Defaults
            to HVD_EXT_SHARDED.
        sync: when nodes exchange: "every_step"; hvd.LocalSGD(steps) or hvd.DiLoCo(steps), with
            which gradients are reduced within a node in every step and nodes exchange weights every
            `steps` steps; "one_step_late", with which gradients travel during the next step's
            backward; or the same as text, such as "diloco:steps=100". Defaults to HVD_EXT_SYNC. On
            one node it is always every step.
        reproducible: the number of slots of a step, a power of two that is at least the number of
            ranks, itself a power of two. Each rank takes an equal part of the slots, and calls
            backward() once for each. Gradients are the mean over the slots (or their sum), the same
            bits on any number of ranks and nodes. Defaults to HVD_EXT_REPRODUCIBLE.

    Returns:
        An optimizer of a class that derives from the given one's, with the methods of
        `DistributedMixin`; or Horovod's own.

    Raises:
        ValueError: as Horovod does, for names that are missing or not unique.
        StallError: ranks did not reach this in time; names them.
        MismatchError: ranks have different parameters; names the first.
        UsageError: `sharded` with an optimizer that uses whole parameters, or with a request that
            the arena does not serve; ranks with different filters, and any request but an average
            in the arena; `sync` is unknown; `sync` or `reproducible` excludes another argument; the
            optimizer is wrapped already.
    """
    if isinstance(optimizer, DistributedMixin):
        raise UsageError(
            "DistributedOptimizer() of an optimizer that it has wrapped: give it the plain one"
        )
    # A generator of names could be read only once.
    named = None if named_parameters is None else list(named_parameters)
    request = Request.of(
        optimizer,
        compression=compression,
        passes=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        sharded=sharded,
        sync=sync,
        reproducible=reproducible,
    ).check()
    reason = fallback.reason_for_horovods(request)
    if reason is None:
        served = _serve(request, named)
        if not isinstance(served, str):
            return served
        reason = served
    return _horovods(request, named, reason)


def _serve(request: Request, named: Named) -> DistributedMixin | str:
    """Make the optimizer over the arena, or return why the arena cannot be used; collective."""
    optimizer = request.optimizer
    if request.passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if request.gradient_predivide_factor != 1.0 and request.op != horovods.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    pairs = pair_names(optimizer, named)
    tried = try_elementwise(optimizer, type(optimizer)) if request.sharded else None
    shards: Shards | None = None
    made = Made()
    if horovods.size() > 1 or request.slots:
        allow_singleton_mpi()
        if tried is not None and horovods.size() > 1:
            shards = Shards(optimizer, type(optimizer), tried, lifecycle.topology().node)
        found = reducers.make(request, pairs, shards)
        if isinstance(found, str):
            return found
        made = found
    wrapped = (sharded_class if shards else distributed_class)(type(optimizer))
    new = wrapped.__new__(wrapped)
    # State and parameter groups are shared, not copied: an optimizer that was loaded
    # from a checkpoint keeps what it has. The instance has `step` only if a learning rate schedule
    # has wrapped it with its counter, which calls the old step.
    new.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    new._attach(
        made.reducer,
        request.op,
        request.passes,
        names={p: name for name, p in pairs},
        rounds=made.rounds,
        sparse_as_dense=request.sparse_as_dense,
    )
    if shards and isinstance(new, ShardedMixin):
        new._attach_shards(shards)
    if variables.AUDIT.read() or variables.AUDIT_EVERY.is_set:
        new.auditor = _audit(pairs, made.reducer, made.rounds)
    return new


def _horovods(request: Request, named: Named, reason: str) -> torch.optim.Optimizer:
    """Return Horovod's own optimizer, if it can serve the request."""
    if error := request.not_served(reason):
        raise error
    if not horovods.INSTALLED:
        raise needs_horovod(f"this DistributedOptimizer ({reason})")
    if variables.AUDIT.read() or variables.AUDIT_EVERY.is_set:
        raise UsageError(
            f"HVD_EXT_AUDIT: Horovod's DistributedOptimizer ({reason}) is not audited: unset it"
        )
    if horovods.rank() == 0:
        log.warning("hvd_ext: falling back to Horovod's DistributedOptimizer: %s", reason)
    background.set_idle(False)  # it has the gradients
    optimizer: torch.optim.Optimizer = horovods.DistributedOptimizer(
        request.optimizer,
        named,
        nearest_of_horovods(request.compression),
        request.passes,
        request.op,
        request.gradient_predivide_factor,
        request.num_groups,
        request.groups,
        request.sparse_as_dense,
        request.process_set,
    )
    return optimizer


def _audit(pairs: NamedParameters, reducer: Reduces | None, rounds: Rounds | None) -> Auditor:
    """Audit an optimizer; collective.

    Raises:
        UsageError: a rank cannot.
    """
    make = partial(Auditor, pairs, horovods.rank(), horovods.size())
    if reducer is None:
        return make()
    topology = lifecycle.topology()
    auditor = on_every_rank_of(topology.world, make, UsageError)
    auditor.watch(reducer)
    # Nodes that do not exchange in every step have different parameters in between.
    if rounds is None:
        auditor.compare_replicas(topology.world, topology.hosts, 0)
    else:
        ranks = topology.node_ranks()
        hosts = [topology.hosts[rank] for rank in ranks]
        auditor.compare_replicas(topology.node, hosts, ranks[0])
    return auditor
