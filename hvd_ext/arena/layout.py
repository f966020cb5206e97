"""The bucket of each parameter, and its place in the arena: pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_ext.dtypes import DTYPES
from hvd_ext.shm.layout import align_up


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """The facts of a parameter that a layout needs.

    Attributes:
        name: unique among the parameters of an optimizer.
        strides: strides of its gradient, in elements; dense in memory in some order.
        dtype: a key of DTYPES.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def padded_bytes(self) -> int:
        """Bytes in the arena: whole cache lines."""
        return align_up(self.count * DTYPES[self.dtype].item_bytes)


@dataclass(frozen=True, slots=True)
class Span:
    """The place of one parameter's gradient.

    Attributes:
        parameter: index into the parameters that were laid out.
        offset_bytes: distance from the start of the arena's data.
        count: number of elements.
        columns: elements of a row, that is, of all dimensions but the first; 0 for a vector.
    """

    parameter: int
    offset_bytes: int
    count: int
    columns: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A run of the arena that is reduced at once; all its elements have one dtype."""

    dtype: str
    offset_bytes: int
    count: int
    spans: tuple[Span, ...]

    @property
    def message_bytes(self) -> int:
        """Payload per rank, alignment gaps included."""
        return self.count * DTYPES[self.dtype].item_bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Buckets in the order in which every rank reduces them.

    Attributes:
        buckets: the buckets in that order.
        total_bytes: length of the arena's data.
        names: names of the parameters that were laid out.
    """

    buckets: tuple[Bucket, ...]
    total_bytes: int
    names: tuple[str, ...] = ()

    def title(self, index: int) -> str:
        """Describe bucket `index` with the names of its gradients, for messages."""
        names = [self.names[span.parameter] for span in self.buckets[index].spans if self.names]
        if len(names) > 2:
            names = [f"{names[0]} to {names[-1]}"]
        said = f" ({', '.join(names)})" if names else ""
        return f"bucket {index + 1} of {len(self.buckets)}{said}"


def layout_by_size(parameters: Sequence[ParameterSpec], bucket_bytes: int) -> Layout:
    """Lay out gradients, last parameter first, as backward mostly makes them ready.

    A bucket is closed when the next gradient has another dtype or would make it
    larger than `bucket_bytes`; a gradient larger than that has its own bucket.
    """
    groups: list[list[int]] = []
    filled = 0
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        padded = parameter.padded_bytes
        same = groups and parameters[groups[-1][0]].dtype == parameter.dtype
        if not same or filled + padded > bucket_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += padded
    return layout_buckets(parameters, groups)


def layout_buckets(parameters: Sequence[ParameterSpec], groups: Sequence[Sequence[int]]) -> Layout:
    """Lay out buckets whose parameters are given; a bucket has one dtype."""
    buckets: list[Bucket] = []
    end = 0
    for group in groups:
        start, dtype = end, parameters[group[0]].dtype
        spans = []
        for index in group:
            parameter = parameters[index]
            is_matrix = len(parameter.shape) > 1 and parameter.count > 0
            columns = parameter.count // parameter.shape[0] if is_matrix else 0
            spans.append(Span(index, end, parameter.count, columns))
            end += parameter.padded_bytes
        count = (end - start) // DTYPES[dtype].item_bytes
        buckets.append(Bucket(dtype, start, count, tuple(spans)))
    return Layout(tuple(buckets), end, tuple(one.name for one in parameters))


def parts(bucket: Bucket, shard_bytes: tuple[int, int]) -> list[tuple[Span, int, int]]:
    """Return which elements [begin, end) of each gradient of a bucket a part of the arena has.

    Args:
        bucket: the bucket of the gradients.
        shard_bytes: the part [begin, end), from the start of the arena's data; its ends are between
            elements. Gradients without an element there are left out.
    """
    item = DTYPES[bucket.dtype].item_bytes
    found = []
    for span in bucket.spans:
        begin = max(0, (shard_bytes[0] - span.offset_bytes) // item)
        end = min(span.count, (shard_bytes[1] - span.offset_bytes) // item)
        if begin < end:
            found.append((span, begin, end))
    return found


def digest(parameters: Sequence[ParameterSpec], bucket_bytes: int) -> str:
    """A fingerprint that is equal on two ranks only if their plans are."""
    text = "\n".join([str(bucket_bytes), *(str(p) for p in parameters)])
    return hashlib.sha256(text.encode()).hexdigest()


def first_difference(
    ours: Sequence[ParameterSpec], theirs: Sequence[ParameterSpec]
) -> tuple[str, str] | None:
    """Describe the first parameter in which two lists differ: ours, theirs; or None."""
    for index in range(max(len(ours), len(theirs))):
        a, b = _describe(ours, index), _describe(theirs, index)
        if a != b:
            return a, b
    return None


def _describe(parameters: Sequence[ParameterSpec], index: int) -> str:
    if index >= len(parameters):
        return f"no parameter {index}"
    p = parameters[index]
    return f"parameter {index} {p.name!r}, {p.dtype}, shape {p.shape}, strides {p.strides}"
