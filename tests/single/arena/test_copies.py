"""copy_each: many copies of different lengths."""

from __future__ import annotations

from array import array

import numpy as np

from hvd_ext.shm.copies import copy_each


def test_each_is_copied_and_nothing_else():
    lengths = [0, 1, 7, 64, 4096, 100_003]
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 256, n, dtype=np.uint8) for n in lengths]
    places = [np.full(n + 2, 7, np.uint8) for n in lengths]
    copy_each(
        array("Q", [place.ctypes.data + 1 for place in places]),
        array("Q", [source.ctypes.data for source in sources]),
        array("Q", lengths),
    )
    for source, place in zip(sources, places, strict=True):
        assert place[0] == place[-1] == 7
        assert np.array_equal(place[1:-1], source)
    copy_each(*(array("Q") for _ in range(3)))
