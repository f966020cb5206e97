"""DistributedOptimizer over the gradient arena, or Horovod's own, with the reason."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch

from hvd_ext import settings
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.sharded import ShardedArena
from hvd_ext.compression.formats import NONE, Format
from hvd_ext.errors import UsageError
from hvd_ext.schedules import EVERY_STEP, Schedule, parse
from hvd_ext.shm.regions import WindowError
from hvd_ext.system.process import allow_singleton_mpi
from hvd_ext.torch import fallback, horovods
from hvd_ext.torch.audit.auditor import Auditor
from hvd_ext.torch.compression import nearest_of_horovods, wanted
from hvd_ext.torch.job import lifecycle
from hvd_ext.torch.job.background import lower_thread_priority
from hvd_ext.torch.own import refuse_own
from hvd_ext.torch.parameters import NamedParameters, pair_names, trainable
from hvd_ext.torch.reduction.arena_factory import ArenaFactory
from hvd_ext.torch.reduction.protocol import Reduces
from hvd_ext.torch.reduction.reducer import Reducer
from hvd_ext.torch.reduction.sparse import MadeDense, NoSparse, SparseExchange
from hvd_ext.torch.reproducible.reducer import ReproducibleReducer, ReproducibleShardedReducer
from hvd_ext.torch.reproducible.request import not_served, passes_of_each_rank
from hvd_ext.torch.sharded.elementwise import try_elementwise
from hvd_ext.torch.sharded.reducer import ShardedReducer
from hvd_ext.torch.sharded.shards import Shards
from hvd_ext.torch.sharded.wrapped import ShardedMixin, sharded_class
from hvd_ext.torch.standalone.refused import needs_horovod
from hvd_ext.torch.sync.late_reducer import LateReducer
from hvd_ext.torch.sync.rounds import Rounds
from hvd_ext.torch.wrapped import DistributedMixin, distributed_class

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

    Takes what `horovod.torch.DistributedOptimizer` takes. Gradients are reduced in
    the arena while backward continues. Where that does not serve what is asked for,
    Horovod's own optimizer is returned, and rank 0 logs the reason.

    Args:
        optimizer: its state and parameter groups are shared with the new one.
        named_parameters: as `model.named_parameters()` gives them; by default parameters are
            numbered. Names are the same on all ranks.
        compression: how gradients travel between nodes: Horovod's none or fp16, or bf16, int8,
            powersgd(rank) or auto, as attributes of hvd.Compression or as text. By default
            HVD_EXT_COMPRESSION counts. Within a node nothing is rounded.
        backward_passes_per_step: how many backward passes fill a gradient.
        op: hvd.Average (the default) or hvd.Sum; others are served by Horovod's own optimizer.
        gradient_predivide_factor: has no effect: 16-bit gradients are summed in 32 bits, so
            they cannot overflow.
        num_groups: has no effect: gradients are always reduced in buckets.
        groups: has no effect either.
        sparse_as_dense: makes sparse gradients dense, and exchanges them as those. SparseAdam's
            step takes them as sparse ones again. It is the same on all ranks.
        process_set: the ranks that exchange gradients: all by default. Others are served by
            Horovod's own optimizer.
        sharded: whether the ranks of a node share the update: each takes the optimizer's step on
            the part of the parameters whose gradients it has summed, keeps the state of that part
            alone, and gives the others the new parameters. Results are the same bits. By default
            HVD_EXT_SHARDED counts.
        sync: when nodes exchange: "every_step"; hvd.LocalSGD(steps) or hvd.DiLoCo(steps), by which
            gradients are reduced within a node in every step and nodes exchange weights once in so
            many; "one_step_late", by which gradients travel behind the next step's backward; or
            the same as text, such as "diloco:steps=100". By default HVD_EXT_SYNC counts. On one
            node it is every step.
        reproducible: the number of slots of a step, a power of two that is at least the number of
            ranks, itself a power of two. Each rank takes an equal part of the slots, and calls
            backward() once for each. Gradients are the mean over the slots (or their sum), the
            same bits on any number of ranks and nodes. By default HVD_EXT_REPRODUCIBLE counts.

    Returns:
        An optimizer of a class that derives from the given one's, with the methods of
        `DistributedMixin`; or Horovod's own.

    Raises:
        ValueError: as Horovod does, for names that are missing or not unique.
        StallError: ranks did not reach this in time; names them.
        MismatchError: ranks have different parameters; names the first.
        UsageError: `sharded` with an optimizer that looks at whole parameters, or with a request
            that the arena does not serve; ranks with different filters, and a request other than
            an average in the arena; `sync` is unknown, or excludes another argument, as
            `reproducible` may; the optimizer is wrapped already.
    """
    if isinstance(optimizer, DistributedMixin):
        raise UsageError(
            "DistributedOptimizer() of an optimizer that it has wrapped: give it the plain one"
        )
    compression = horovods.Compression.none if compression is None else compression
    op = horovods.Average if op is None else op
    process_set = horovods.global_process_set if process_set is None else process_set
    sharded = settings.sharded() if sharded is None else sharded
    schedule = parse(settings.sync() if sync is None else sync)
    slots = settings.reproducible() if reproducible is None else reproducible
    # A generator of names must be there for a second reader.
    named = None if named_parameters is None else list(named_parameters)
    reason = fallback.reason_for_horovods(optimizer, compression, op, process_set)
    if schedule != EVERY_STEP:
        refuse_own(
            (p for group in optimizer.param_groups for p in group["params"]),
            f"sync={str(schedule)!r}",
            "leave it out",
        )
        _check_sync(schedule, sharded, op)
    if slots is not None:
        if reason is not None:
            raise not_served(slots, reason)
        backward_passes_per_step = passes_of_each_rank(
            slots,
            [p for group in optimizer.param_groups for p in group["params"]],
            passes=backward_passes_per_step,
            format=wanted(compression),
            schedule=schedule,
            sharded=sharded,
        )
    reducer: Reduces | None = None
    rounds: Rounds | None = None
    shards: Shards | None = None
    pairs: list[tuple[str, torch.nn.Parameter]] = []
    if reason is None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        if gradient_predivide_factor != 1.0 and op != horovods.Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        pairs = pair_names(optimizer, named)
        if op != horovods.Average:
            refuse_own((p for _, p in pairs), f"op={op}", "leave it out")
        if sharded:
            refuse_own((p for _, p in pairs), "sharded=True (HVD_EXT_SHARDED)", "leave it out")
            tried = try_elementwise(optimizer, type(optimizer))
        if horovods.size() > 1 or slots:
            allow_singleton_mpi()
            if sharded and horovods.size() > 1:
                node = lifecycle.topology().node
                shards = Shards(optimizer, type(optimizer), tried, node)
            format = wanted(compression)
            passes = backward_passes_per_step
            made = _open(pairs, op, passes, shards, format, schedule, slots or 0, sparse_as_dense)
            reducer, rounds, reason = made
    if reason is not None and slots:
        raise not_served(slots, reason)
    if reason is not None and sharded:
        raise UsageError(f"sharded=True (HVD_EXT_SHARDED): not served: {reason}; leave it out")
    if reason is not None and schedule != EVERY_STEP:
        raise UsageError(
            f"sync={str(schedule)!r} (HVD_EXT_SYNC): not served: {reason}; leave it out"
        )
    if reason is not None:
        every = (p for group in optimizer.param_groups for p in group["params"])
        refuse_own(every, "Horovod's DistributedOptimizer", f"the arena cannot take it: {reason}")
        if not horovods.INSTALLED:
            raise needs_horovod(f"this DistributedOptimizer ({reason})")
        if settings.audit_folder() or settings.compares_replicas():
            raise UsageError(
                f"HVD_EXT_AUDIT: Horovod's DistributedOptimizer ({reason}) is not audited: unset it"
            )
        if horovods.rank() == 0:
            log.warning("hvd_ext: falling back to Horovod's DistributedOptimizer: %s", reason)
        return horovods.DistributedOptimizer(
            optimizer,
            named,
            nearest_of_horovods(compression),
            backward_passes_per_step,
            op,
            gradient_predivide_factor,
            num_groups,
            groups,
            sparse_as_dense,
            process_set,
        )
    wrapped = (sharded_class if shards else distributed_class)(type(optimizer))
    new = wrapped.__new__(wrapped)
    # State and parameter groups are shared, not copied: an optimizer that was loaded
    # from a checkpoint keeps what it has. `step` is there on the instance only when a
    # learning rate schedule has put its counter around it: that one calls the old step.
    new.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    names = {p: name for name, p in pairs}
    new._attach(reducer, op, backward_passes_per_step, names, rounds, sparse_as_dense)
    if shards and isinstance(new, ShardedMixin):
        new._attach_shards(shards)
    if settings.audit_folder() or settings.compares_replicas():
        new.auditor = _audit(pairs, reducer, rounds)
    return new


def _audit(pairs: NamedParameters, reducer: Reduces | None, rounds: Rounds | None) -> Auditor:
    """Audit an optimizer; collective.

    Raises:
        UsageError: some rank cannot.
    """
    auditor: Auditor | str
    try:
        auditor = Auditor(pairs, horovods.rank(), horovods.size())
    except UsageError as error:
        auditor = str(error)
    if reducer is not None:
        topology = lifecycle.topology()
        refusals = topology.world.allgather(auditor if isinstance(auditor, str) else None)
        auditor = next((refusal for refusal in refusals if refusal), auditor)
    if isinstance(auditor, str):
        raise UsageError(auditor)
    if reducer is not None:
        auditor.watch(reducer)
        # Nodes that do not exchange in every step hold other parameters meanwhile.
        if rounds is None:
            auditor.compare_replicas(topology.world, topology.hosts, 0)
        else:
            ranks = topology.node_ranks()
            hosts = [topology.hosts[rank] for rank in ranks]
            auditor.compare_replicas(topology.node, hosts, ranks[0])
    return auditor


def _check_sync(schedule: Schedule, sharded: bool, op: Any) -> None:
    """Refuse what nodes that do not exchange in every step do not go with.

    Raises:
        UsageError: says what.
    """
    if sharded:
        raise UsageError(f"sync={str(schedule)!r} with sharded=True: leave one of them out")
    if op != horovods.Average:
        raise UsageError(
            f"sync={str(schedule)!r} with another op than Average: leave one of them out"
        )


def _open(
    pairs: list[tuple[str, torch.nn.Parameter]],
    op: Any,
    passes: int,
    shards: Shards | None,
    format: Format | str,
    schedule: Schedule,
    slots: int,
    sparse_as_dense: bool,
) -> tuple[Reduces | None, Rounds | None, str | None]:
    """Make the reducer, and what exchanges weights, if that is asked for.

    The last value is why it could not be done, the same on every rank.
    """
    device = pairs[0][1].device if pairs else torch.device("cpu")
    reducer: Reduces
    if device.type != "cpu" and format is not NONE:
        return None, None, f"gradient compression of parameters on {device}"
    if device.type != "cpu" and (shards or slots or schedule != EVERY_STEP):
        return None, None, f"parameters are on {device}"
    named = trainable(pairs)
    rounds: Rounds | None = None

    def sparse(refused_with: str) -> SparseExchange:
        return MadeDense() if sparse_as_dense else NoSparse(refused_with)

    kind = ShardedArena if shards else HostArena
    try:
        factory = ArenaFactory(
            *(lifecycle.topology(), lifecycle.begun_steps, op, device, format, kind, schedule),
            slots,
        )
        if shards:
            of_shards = ReproducibleShardedReducer if slots else ShardedReducer
            reducer = of_shards(named, passes, factory, sparse("sharded=True"), shards)
        elif slots:
            asked = f"reproducible={slots}"
            reducer = ReproducibleReducer(named, passes, factory, sparse(asked))
        elif schedule == EVERY_STEP:
            exchange = MadeDense() if sparse_as_dense else SparseExchange(op)
            reducer = Reducer(named, passes, factory, exchange)
        else:
            make = LateReducer if factory.is_late else Reducer
            reducer = make(named, passes, factory, sparse(f"sync={str(schedule)!r}"))
            rounds = factory.rounds(named)
    except WindowError as error:
        return None, None, str(error)
    reducer.frozen.add(pairs)
    reducer.frozen.can_thaw = rounds is None and not factory.is_late
    lifecycle.add(reducer, rounds)
    lower_thread_priority()
    return reducer, rounds, None
