"""copy_each and digest_each: pieces of memory of different lengths."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from hvd_ext.shm.copies import copy_each, digest_each


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


def digests(*memories):
    return digest_each(
        array("Q", [memory.ctypes.data for memory in memories]),
        array("Q", [memory.nbytes for memory in memories]),
    )


def test_a_digest_is_of_the_bytes_alone():
    memories = [np.arange(n, dtype=np.uint8) for n in (0, 1, 7, 8, 31, 32, 33, 256)]
    unaligned = [np.concatenate([[9], memory, [9]]).astype(np.uint8)[1:-1] for memory in memories]
    assert digests(*memories) == digests(*unaligned)
    assert digests() == array("Q")


def test_a_digest_changes_with_each_bit():
    for n in (1, 7, 32, 45):
        memory = np.zeros(n, np.uint8)
        seen = {*digests(memory)}
        for bit in range(8 * n):
            memory[bit // 8] ^= 1 << bit % 8
            seen.update(digests(memory))
            memory[bit // 8] ^= 1 << bit % 8
        assert len(seen) == 8 * n + 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_digest_changes_when_all_is_negated_halved_or_zeroed(dtype):
    rng = np.random.default_rng(0)
    for n in range(1, 200):
        memory = rng.standard_normal(n).astype(dtype)
        forms = [memory, -memory, memory / 2, np.zeros_like(memory), np.roll(memory, 1)]
        assert len({*digests(*forms)}) == (len(forms) if n > 1 else len(forms) - 1)
