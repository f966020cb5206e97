"""What is sent and what is decoded has the same bits, whatever instructions a CPU has."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_ext.compression import codec
from hvd_ext.compression.formats import BF16, FP16, INT8
from tests.support.compression.other_codec import SCALAR, THIS_CPU, compile_codec

COUNT = 5003


@pytest.fixture(scope="module", params=[SCALAR, THIS_CPU], ids=["scalar", "this cpu"])
def other(request, tmp_path_factory):
    return compile_codec(tmp_path_factory.mktemp("codec"), request.param)


def numbers(seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(COUNT) * 10.0 ** rng.integers(-30, 30, COUNT)).astype(np.float32)
    x[::101], x[7], x[3000] = 0.0, -0.0, 1e-40
    return x


def sent_and_decoded(format, x):
    residual = numbers(2)
    message = codec.Message(0, COUNT, codec.whole(COUNT, format))
    out, to = np.zeros(message.bytes, np.uint8), numbers(3)
    message.encode(x, residual, out)
    message.decode(out, to, add=True)
    return out.tobytes(), residual.tobytes(), to.tobytes()


@pytest.mark.parametrize("format", [BF16, FP16, INT8], ids=lambda f: f.name)
@pytest.mark.parametrize("special", [1.0, np.inf, np.nan])
def test_formats(monkeypatch, other, format, special):
    x = numbers(1)
    x[4000] = special
    expected = sent_and_decoded(format, x)
    monkeypatch.setattr(codec, "library", lambda: other)
    assert sent_and_decoded(format, x) == expected


def test_what_all_nodes_compute_alike_of_factors(other):
    rows, columns, rank = 37, 203, 5
    rng = np.random.default_rng(4)

    def applied(library):
        left = rng.standard_normal((rank, rows)).astype(np.float32)
        right = rng.standard_normal((rank, columns)).astype(np.float32)
        left[2], right[3] = 0.0, right[1] * 2
        share, residual = np.ones((2, rows, columns), np.float32)
        library.low_rank_orthonormalise(left.ctypes.data, rows, rank)
        library.low_rank_orthonormalise(right.ctypes.data, columns, rank)
        for factor in (left, right):
            np.testing.assert_allclose(factor @ factor.T, np.eye(rank), atol=1e-5)
        library.low_rank_apply(
            *(share.ctypes.data, residual.ctypes.data, rows, columns, rank, 1 / 3),
            *(left.ctypes.data, right.ctypes.data),
        )
        return left.tobytes(), right.tobytes(), share.tobytes(), residual.tobytes()

    expected = applied(codec.library())
    rng = np.random.default_rng(4)
    assert applied(other) == expected
