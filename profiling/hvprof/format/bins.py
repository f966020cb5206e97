"""The bins of message sizes and the buckets of times, as recorder.h counts them."""

from __future__ import annotations

BINS, BUCKETS = 129, 256

# Buckets of the histograms of times: 8 for each power of two, from 32 ns on.
_BUCKETS_PER_OCTAVE = 8
_FIRST_EXPONENT = 5


def bin_edges(index: int) -> tuple[int, int]:
    """Smallest and largest message of a bin: powers of two have separate bins."""
    if index == 0:
        return 0, 0
    exponent, between = divmod(index - 1, 2)
    power = 1 << exponent
    return (power + 1, 2 * power - 1) if between else (power, power)


def bin_index(message_bytes: int) -> int:
    if message_bytes == 0:
        return 0
    exponent = message_bytes.bit_length() - 1
    return 2 * exponent + 1 + (message_bytes != 1 << exponent)


def bucket_index(time_ns: int) -> int:
    exponent = time_ns.bit_length() - 1
    if exponent < _FIRST_EXPONENT:
        return 0
    part = time_ns >> exponent - 3 & _BUCKETS_PER_OCTAVE - 1
    return min((exponent - _FIRST_EXPONENT) * _BUCKETS_PER_OCTAVE + part + 1, BUCKETS - 1)


def bucket_edges_s(bucket: int) -> tuple[float, float]:
    """Return the limits of a histogram's bucket, in s."""
    if bucket == 0:
        return 0.0, 2**_FIRST_EXPONENT / 1e9
    octave, part = divmod(bucket - 1, _BUCKETS_PER_OCTAVE)
    unit = 2 ** (octave + _FIRST_EXPONENT) / _BUCKETS_PER_OCTAVE / 1e9
    return (_BUCKETS_PER_OCTAVE + part) * unit, (_BUCKETS_PER_OCTAVE + part + 1) * unit
