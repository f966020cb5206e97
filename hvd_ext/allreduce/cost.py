"""What an allreduce should cost: latency-bandwidth formulas, and their fit to measurements.

A message takes a + n b, a reduction n g. Each algorithm is a count of messages, of bytes
sent one after the other, and of bytes reduced (Thakur, Rabenseifner and Gropp, IJHPCA 19,
2005; Sanders, Speck and Traeff, Parallel Computing 35, 2009), so that its time is linear
in a, b and g, and these follow from measurements by least squares.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hvd_ext.allreduce.segments import SEGMENT_BYTES
from hvd_ext.errors import UsageError


@dataclass(frozen=True, slots=True)
class Work:
    """What an allreduce does on its critical path.

    Attributes:
        messages: how many, one after the other.
        sent_bytes: how many, one after the other.
        reduced_bytes: how many are combined.
    """

    messages: float
    sent_bytes: float
    reduced_bytes: float


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine takes: a, b and g.

    Attributes:
        latency_s: for a message, whatever its length.
        byte_s: for a byte sent.
        reduction_s: for a byte combined.
    """

    latency_s: float
    byte_s: float
    reduction_s: float

    def time_s(self, work: Work) -> float:
        """How long `work` takes."""
        return (
            self.latency_s * work.messages
            + self.byte_s * work.sent_bytes
            + self.reduction_s * work.reduced_bytes
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """The time of one allreduce of `message_bytes` per rank over `size` ranks."""

    algorithm: str
    size: int
    message_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class FitError:
    """How far predictions are from measurements that the fit did not see: |t' - t| / t."""

    median: float
    worst: float


def ring(size: int, message_bytes: float) -> Work:
    """2 (p-1) a + 2 (p-1)/p n b + (p-1)/p n g."""
    share = (size - 1) / size * message_bytes
    return Work(2 * (size - 1), 2 * share, share)


def recursive_doubling(size: int, message_bytes: float) -> Work:
    """Lg p (a + n b + n g), and 2 a + 2 n b + n g where p is no power of two."""
    rounds, folded = _rounds(size)
    return Work(
        rounds + 2 * folded,
        (rounds + 2 * folded) * message_bytes,
        (rounds + folded) * message_bytes,
    )


def rabenseifner(size: int, message_bytes: float) -> Work:
    """2 lg p a + 2 (p-1)/p n b + (p-1)/p n g, and the same as above for other p.

    The halving is among the 2^floor(lg p) ranks that are left after folding.
    """
    rounds, folded = _rounds(size)
    share = (1 - 2.0**-rounds) * message_bytes
    return Work(
        2 * rounds + 2 * folded,
        2 * share + 2 * folded * message_bytes,
        share + folded * message_bytes,
    )


def tree(size: int, message_bytes: float) -> Work:
    """ceil(lg p) (2 a + 2 n b + n g)."""
    depth = (size - 1).bit_length()
    return Work(2 * depth, 2 * depth * message_bytes, depth * message_bytes)


def double_tree(size: int, message_bytes: float) -> Work:
    """2 lg p a + 2 n b + n g, and what filling the pipeline takes.

    With segments of s bytes, the O(sqrt(n b a lg p)) of the best s is a for each
    further segment, and lg p segments to send and to combine until the first is through.
    """
    if size == 1:
        return Work(0, 0, 0)
    depth = (size - 1).bit_length()
    segments = max(1, -(-message_bytes // (2 * SEGMENT_BYTES)))
    filling = (depth - 1) * message_bytes / (2 * segments)
    return Work(
        2 * depth + 2 * (segments - 1),
        2 * message_bytes + 2 * filling,
        message_bytes + filling,
    )


FORMULAS: dict[str, Callable[[int, float], Work]] = {
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "rabenseifner": rabenseifner,
    "tree": tree,
    "double_tree": double_tree,
}


def work(algorithm: str, size: int, message_bytes: float) -> Work:
    """What `algorithm` does.

    Raises:
        UsageError: there is no formula for it, as for the library's own.
    """
    if algorithm not in FORMULAS:
        raise UsageError(f"algorithm {algorithm!r} has no formula: use {', '.join(FORMULAS)}")
    if size < 1 or message_bytes < 0:
        raise UsageError(f"{size} ranks and {message_bytes} bytes: give at least 1 and 0")
    return FORMULAS[algorithm](size, message_bytes)


def hierarchical_time_s(
    local_size: int, message_bytes: float, node: Rates, between: Callable[[float], float]
) -> float:
    """2 (k-1) a1 + (k-1)/k n (2 b1 + g) + T_inter(n/k, N).

    Args:
        local_size: k, the ranks of a node.
        message_bytes: n.
        node: the rates within a node.
        between: seconds between the nodes for a share of so many bytes.
    """
    return node.time_s(ring(local_size, message_bytes)) + between(message_bytes / local_size)


def fit(measurements: Sequence[Measurement]) -> Rates:
    """Find the rates, none negative, of the least squared relative error.

    One algorithm at one number of ranks cannot tell sending from combining: what it
    predicts for other sizes holds, its byte_s alone means nothing.

    Raises:
        UsageError: no measurements, or one that took no time.
    """
    if not measurements or any(not m.time_s > 0 for m in measurements):
        raise UsageError("a fit needs measurements, all of them of more than 0 s")
    rows = [work(m.algorithm, m.size, m.message_bytes) for m in measurements]
    terms = np.array([(w.messages, w.sent_bytes, w.reduced_bytes) for w in rows], float)
    terms /= np.array([m.time_s for m in measurements])[:, None]
    # Columns differ by ten orders of magnitude.
    scale = np.abs(terms).max(axis=0)
    scale[scale == 0] = 1.0
    terms /= scale
    ones = np.ones(len(rows))
    best, least = np.zeros(3), float(ones @ ones)
    # Three unknowns: every set of those that are not zero can be tried.
    for used in itertools.chain.from_iterable(
        itertools.combinations(range(3), n) for n in (1, 2, 3)
    ):
        found, *_ = np.linalg.lstsq(terms[:, used], ones, rcond=None)
        misfit = terms[:, used] @ found - ones
        if (found >= 0).all() and misfit @ misfit < least:
            best, least = np.zeros(3), float(misfit @ misfit)
            best[list(used)] = found
    return Rates(*(float(rate) for rate in best / scale))


def leave_one_out(measurements: Sequence[Measurement]) -> FitError:
    """Predict each measurement from a fit of all others.

    Raises:
        UsageError: fewer than two measurements.
    """
    if len(measurements) < 2:
        raise UsageError(f"{len(measurements)} measurements: leaving one out needs two or more")
    errors = []
    for index, left_out in enumerate(measurements):
        rates = fit([*measurements[:index], *measurements[index + 1 :]])
        predicted = rates.time_s(work(left_out.algorithm, left_out.size, left_out.message_bytes))
        errors.append(abs(predicted - left_out.time_s) / left_out.time_s)
    return FitError(statistics.median(errors), max(errors))


def _rounds(size: int) -> tuple[int, int]:
    """floor(lg p), and 1 if p is no power of two."""
    rounds = size.bit_length() - 1
    return rounds, int(size != 1 << rounds)
