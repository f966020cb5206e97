"""The key of a cell or a traced call: 64 bits, as format.h packs them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# The orders are those of the recorder's enums. Regions are counted like one more kind of traffic.
TRAFFIC = ("data", "control", "transport", "tuning")
# Messages are counted a second time by partner, like this.
REGION, PARTNER = len(TRAFFIC), len(TRAFFIC) + 1
# Represents the partners beyond the first 256.
OTHER_PARTNERS = (1 << 18) - 1
SOURCES = ("mpi", "hvd_ext", "program", "torch")

_USED = 1 << 63  # no key is 0
# First bit and number of bits of each field.
_BITS = ((0, 8), (8, 8), (16, 8), (24, 3), (27, 2), (29, 8), (37, 8), (45, 18))


class Key(NamedTuple):
    """A kind of call, as numbers.

    Attributes:
        operation, algorithm, datatype: numbers of names; for a region, its name and kind.
            Datatype 0 is unknown.
        size_bin: the message's bin, as in `bins`.
        traffic: index into TRAFFIC, REGION, or PARTNER.
        source: index into SOURCES.
        communicator: number of the rank's communicator; 0: none.
        partner: for PARTNER, the world rank; its operation is named "to" or "from".
    """

    operation: int
    algorithm: int
    size_bin: int = 0
    traffic: int = 0
    source: int = 0
    datatype: int = 0
    communicator: int = 0
    partner: int = 0


def encode(key: Key) -> int:
    """Pack a key into 64 bits."""
    return _USED | sum(value << shift for value, (shift, _) in zip(key, _BITS, strict=True))


def decode(packed: int) -> Key:
    return Key(*(packed >> shift & (1 << bits) - 1 for shift, bits in _BITS))


def decode_all(packed: NDArray[Any]) -> dict[str, NDArray[np.int64]]:
    """Unpack an array of keys: for each field of Key an array of the same shape."""
    unsigned = packed.astype(np.uint64)
    return {
        name: (unsigned >> np.uint64(shift) & np.uint64((1 << bits) - 1)).astype(np.int64)
        for name, (shift, bits) in zip(Key._fields, _BITS, strict=True)
    }
