"""The limits of a training's scaling, from timed layers and a link, or from a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf

from hvd_ext.errors import UsageError
from hvd_ext.units import counted
from hvprof.analysis.contention import StepParts
from hvprof.analysis.limits.compute import Compute, batch_time, compute_of, gradients_of
from hvprof.analysis.limits.exchange import ALGORITHMS, RING, as_recorded, over_link, passes
from hvprof.analysis.limits.overlap import LayerOverlap, recorded_overlap
from hvprof.analysis.limits.step_time import StepModel, StepTime
from hvprof.analysis.limits.stops import Stop, ruling, stops
from hvprof.analysis.limits.waiting import jitter_of
from hvprof.analysis.summary import Row
from hvprof.layers.table import LayerTable
from hvprof.model import Recording

# Backward has two of the three matrix products of a layer.
_BACKWARD = 2 / 3
_MOST_ROWS = 64
_EXCHANGES = ("allreduce", "iallreduce", "reduce_scatter", "reduce_scatter_block")


@dataclass(frozen=True, slots=True)
class Question:
    """The question.

    Attributes:
        link_gb_s: bandwidth of a node's link, in 10^9 bytes/s; None: as recorded.
        batch: batch of all ranks together; None: unknown (for layers: the largest that was timed).
        ranks_per_node: ranks of a node; None: as recorded, else 1.
        most_ranks: largest number of ranks in the table; None: one sample for each rank, or 64
            times the measured number.
        efficiency: efficiency below which more ranks do not pay, above 0 and below 1.
    """

    link_gb_s: float | None = None
    batch: int | None = None
    ranks_per_node: int | None = None
    most_ranks: int | None = None
    efficiency: float = 0.5


@dataclass(frozen=True, slots=True)
class Scaling:
    """Scaling with one algorithm of the exchange.

    Attributes:
        stops: the four limits.
        rules: the limit that is reached first; None if none is.
        rules_twice: the same with twice the bandwidth.
        strong, weak: the step by number of ranks, with a fixed global batch, and with a fixed batch
            for each rank.
    """

    stops: tuple[Stop, ...]
    rules: Stop | None
    rules_twice: Stop | None
    strong: tuple[StepTime, ...]
    weak: tuple[StepTime, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """Where scaling stops.

    Attributes:
        source: what was measured, in words.
        base_ranks: ranks of the measured step, to which speedups refer.
        ranks_per_node: ranks of every node; None: all ranks are assumed to share one.
        batch: batch of all ranks; None: unknown.
        message_bytes: bytes that a rank exchanges in a step.
        link_gb_s: bandwidth of the link, or of the recorded exchange.
        step: the measured step.
        fixed_s: compute that does not shrink with the batch.
        skinny: names of the layers that take most of that.
        by_algorithm: "ring", which no exchange beats, and "tree", how most grow.
        network_free, synchrony_free: speedups of the measured step if the exchange cost nothing,
            and if ranks also did not wait for each other.
        shared_input_ranks: number of ranks from which input takes longer than compute, if the file
            system is at its limit; None if no input was recorded.
        efficiency: the requested one.
    """

    source: str
    base_ranks: int
    ranks_per_node: int | None
    batch: int | None
    message_bytes: float
    link_gb_s: float | None
    step: StepTime
    fixed_s: float
    skinny: tuple[str, ...]
    by_algorithm: dict[str, Scaling]
    network_free: float
    synchrony_free: float
    shared_input_ranks: float | None
    efficiency: float

    def needed_gb_s(self, step: StepTime) -> float:
        """Return the bandwidth in 10^9 bytes/s at which backward hides a ring; 0 for one rank."""
        sent_bytes = _passes(step.ranks, self.ranks_per_node) * self.message_bytes
        return sent_bytes / step.backward_s / 1e9 if step.backward_s else 0.0


def limits_of_layers(table: LayerTable, question: Question) -> Limits:
    """Compute the limits of timed layers over a link, without a recording.

    Raises:
        UsageError: no link is given, or the layers have no gradients, or took no time.
    """
    if question.link_gb_s is None:
        raise UsageError("no link: give --link GBIT, the bandwidth of a node's link, such as 100")
    gradients = gradients_of(table)
    message_bytes = sum(gradient.message_bytes for gradient in gradients)
    compute = compute_of(table)
    if not message_bytes or not compute.time_s(1):
        what = "no time" if message_bytes else "no gradients"
        raise UsageError(f"the layers have {what}: measure them with hvprof layers --json")
    batch, per_node = question.batch or table.batches[-1], question.ranks_per_node or 1
    models = {
        algorithm: StepModel(
            base_ranks=1,
            batch=batch,
            compute=compute,
            exchange=over_link(algorithm, message_bytes, question.link_gb_s, per_node),
            overlap=LayerOverlap(gradients),
        )
        for algorithm in ALGORITHMS
    }
    source = f"{table.model}, timed on one rank at a batch of {_listed(table.batches)}"
    link_gb_s = question.link_gb_s
    return _limits(source, models, message_bytes, batch, per_node, link_gb_s, question, table)


def limits_of_recording(
    recording: Recording,
    parts: StepParts | None,
    message_bytes: float,
    question: Question,
    layers: LayerTable | None = None,
) -> Limits:
    """Compute the limits of a recorded training.

    Args:
        recording: recording of at least 2 ranks that mark their steps.
        parts: parts of a step.
        message_bytes: bytes that a rank exchanges in a step.
        question: the question.
        layers: show how compute shrinks with the batch, which must then be known.

    Raises:
        UsageError: the recording lacks the data.
    """
    size, sums = recording.size, recording.all_steps
    if parts is None or sums is None or not parts.time_s:
        raise UsageError(
            "the recording has no steps: mark them with hvprof.step() and record again"
        )
    if not parts.compute_s + parts.io_s + parts.other_s:
        raise UsageError(
            "all of a step is communication: call hvprof.step() outside of regions of that kind"
        )
    if size < 2:
        raise UsageError(
            "a recording of 1 rank has no exchange: record 2 or more, or give hvprof limits the "
            "table of hvprof layers --json, and --link"
        )
    if layers and not question.batch:
        raise UsageError("--layers needs --batch, the samples in a step over all ranks")
    nodes = len({rank.host for rank in recording.ranks})
    per_node = question.ranks_per_node or max(1, round(size / nodes))
    batch = question.batch or size
    jitter = jitter_of(recording).at_most(parts.exposed_s, size)
    exposed_s = max(0.0, parts.exposed_s - jitter.waiting_s(size))
    exchange_s = exposed_s + sums.overlapped_s / sums.index
    # Without regions of compute, all time that is neither exchange nor input counts as compute.
    compute_s, other_s = parts.compute_s, parts.other_s
    if not compute_s:
        compute_s, other_s = other_s, 0.0
    compute_s += parts.waiting_s or 0.0
    compute = _recorded_compute(recording, compute_s, batch / size, layers)
    backward_s = compute.backward.at(batch / size)
    slowed_s = parts.slowed_s or 0.0
    models = {
        algorithm: StepModel(
            base_ranks=size,
            batch=batch,
            compute=compute,
            exchange=as_recorded(
                algorithm, exchange_s, message_bytes, size, per_node, question.link_gb_s
            ),
            overlap=recorded_overlap(exposed_s, exchange_s, backward_s),
            jitter=jitter,
            slowed=slowed_s / exchange_s if exchange_s else 0.0,
            io_s=parts.io_s,
            # Contention that the exchange does not cause stays.
            other_s=other_s + (0.0 if exchange_s else slowed_s),
        )
        for algorithm in ALGORITHMS
    }
    known = None if isinf(models[RING].exchange.ranks_per_node) else per_node
    reached = _passes(size, per_node) * message_bytes / exchange_s / 1e9 if exchange_s else None
    source = (
        f"{counted(size, 'rank')} on {counted(nodes, 'node')}, mean of "
        f"{counted(sums.index, 'step')}"
    )
    link_gb_s = question.link_gb_s or reached
    return _limits(
        source, models, message_bytes, question.batch, known, link_gb_s, question, layers
    )


def exchanged_bytes(rows: Sequence[Row], recording: Recording) -> float:
    """Return the bytes that a rank exchanges in a step: its data traffic in allreduces."""
    sums = recording.all_steps
    if sums is None or not sums.index:
        return 0.0
    total = sum(row.message_bytes for row in rows if row.operation in _EXCHANGES)
    return total / len(recording.ranks) / sums.index


def _limits(
    source: str,
    models: dict[str, StepModel],
    message_bytes: float,
    batch: int | None,
    per_node: int | None,
    link_gb_s: float | None,
    question: Question,
    layers: LayerTable | None,
) -> Limits:
    model = models[RING]
    step = model.strong(model.base_ranks)
    without_s = step.without_network_s
    return Limits(
        source=source,
        base_ranks=model.base_ranks,
        ranks_per_node=per_node,
        batch=batch,
        message_bytes=message_bytes,
        link_gb_s=link_gb_s,
        step=step,
        fixed_s=model.compute.forward.fixed_s + model.compute.backward.fixed_s,
        skinny=tuple(layer.name for layer in layers.skinny) if layers else (),
        by_algorithm={
            name: _scaling(one, batch is not None, question) for name, one in models.items()
        },
        network_free=step.time_s / without_s,
        synchrony_free=step.time_s / (without_s - step.waiting_s),
        shared_input_ranks=model.base_ranks * step.compute_s / step.io_s if step.io_s else None,
        efficiency=question.efficiency,
    )


def _scaling(model: StepModel, batch_known: bool, question: Question) -> Scaling:
    found = stops(model, batch_known, question.efficiency)
    base = model.base_ranks
    most = question.most_ranks or (int(model.batch) if batch_known else base * _MOST_ROWS)
    most = max(base, min(most, int(model.batch)) if batch_known else most)
    ranks = [base * 2**power for power in range((most // base).bit_length())]
    ranks += [most] * (ranks[-1] != most)
    return Scaling(
        stops=found,
        rules=ruling(found),
        rules_twice=ruling(stops(model.with_bandwidth(2), batch_known, question.efficiency)),
        strong=tuple(model.strong(one) for one in ranks),
        weak=tuple(model.weak(one) for one in ranks),
    )


def _recorded_compute(
    recording: Recording, compute_s: float, batch: float, layers: LayerTable | None
) -> Compute:
    """Return compute by the batch of a rank: by its layers, or in proportion."""
    if layers is not None:
        timed = compute_of(layers)
        return timed.times(compute_s / timed.time_s(batch)) if timed.time_s(batch) else timed
    named_s = [
        region.time_s
        for rank in recording.ranks
        for region in rank.regions
        if (region.name, region.kind) == ("backward", "compute")
    ]
    sums = recording.all_steps
    share = _BACKWARD
    if named_s and sums and compute_s:
        share = min(1.0, sum(named_s) / len(recording.ranks) / sums.index / compute_s)
    return Compute(
        batch_time([batch], [compute_s * (1 - share)]), batch_time([batch], [compute_s * share])
    )


def _passes(ranks: float, per_node: int | None) -> float:
    """Return how often a ring sends the gradients through a node's link, or a rank's."""
    nodes = ranks / min(ranks, per_node or ranks)
    return passes(RING, nodes if nodes > 1 else ranks)


def _listed(batches: Sequence[int]) -> str:
    *first, last = map(str, batches)
    return f"{', '.join(first)} and {last}" if first else last
