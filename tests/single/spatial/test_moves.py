"""The kernel that packs halos, run on the host: pieces of every layout become rows of bytes."""

from __future__ import annotations

import ctypes
import itertools
import random
import shutil
from collections.abc import Callable
from importlib.resources import files

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from hvd_ext.spatial.exchange.device.halos import _move
from hvd_ext.spatial.exchange.device.moves import MOST_DIMS, flat, table
from testbed.cuda_stand_in.kernels import compile_for_host

Pack = Callable[[list[Tensor], int], list[Tensor]]


@pytest.fixture(scope="module")
def pack() -> Pack:
    """Packs pieces, each to a place that is so many bytes from where vectors begin."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    source = files("hvd_ext.spatial.exchange.device").joinpath("move.cu")
    library = compile_for_host(source.read_text(encoding="utf-8"))
    kernel = ctypes.cast(library.move, ctypes.c_void_p)

    def pack(pieces: list[Tensor], off: int) -> list[Tensor]:
        memory = [torch.full((piece.nbytes + 64,), 77, dtype=torch.uint8) for piece in pieces]
        begins = [-row.data_ptr() % 16 + off for row in memory]
        rows = table(
            [
                _move(piece, row.data_ptr() + begin)
                for piece, row, begin in zip(pieces, memory, begins, strict=True)
            ]
        )
        if len(rows):
            words = rows.ctypes.data_as(ctypes.c_void_p)
            library.run_move(kernel, 2 * len(rows), 3, words, 2)
        packed = []
        for piece, row, begin in zip(pieces, memory, begins, strict=True):
            # Nothing beside it was written.
            assert (row[:begin] == 77).all()
            assert (row[begin + piece.nbytes :] == 77).all()
            packed.append(row[begin : begin + piece.nbytes].clone())
        return packed

    return pack


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32", "float64"])
def test_pieces_of_blocks_become_rows(pack: Pack, dtype: str) -> None:
    rnd = random.Random(dtype)
    for dims, off in itertools.product(range(1, 6), (0, 4, 8)):
        shape = [rnd.randint(1, 6) for _ in range(dims)]
        whole = torch.arange(int(np.prod(shape))).to(getattr(torch, dtype)).view(shape)
        if dims == 4:
            whole = whole.contiguous(memory_format=torch.channels_last)
        pieces = []
        for _ in range(6):
            cuts = [sorted(rnd.sample(range(n + 1), 2)) for n in shape]
            pieces.append(whole[tuple(slice(*cut) for cut in cuts)])
        # Gradients of sums have a stride of 0, and others are permuted.
        pieces += [whole[:1].expand(3, *shape[1:]), whole.movedim(0, -1), whole[:0]]
        for piece, got in zip(pieces, pack(pieces, off), strict=True):
            wanted = torch.cat([piece.reshape(-1)]).view(torch.uint8)
            assert torch.equal(got, wanted), (dtype, tuple(piece.shape), piece.stride())


def test_what_lies_together_is_copied_by_16_bytes() -> None:
    block = torch.zeros(4, 8, 16)
    (row,) = table([_move(block[:, 2:6], 1 << 12)]).tolist()
    _, target, count, unit, *_ = row
    if block.data_ptr() % 16 == 0:
        assert (target, count, unit) == (1 << 12, 4 * 4 * 16 * 4 // 16, 16)
    (row,) = table([_move(block[:, :, 3], 1 << 12)]).tolist()
    assert row[2:4] == [32, 4]
    (row,) = table([flat(1 << 12, 24, (1 << 13) + 8)]).tolist()
    assert row[2:4] == [3, 8]


def test_more_dims_than_the_kernel_has_are_told() -> None:
    piece = torch.zeros([3] * 8)[(slice(0, 2),) * 8]
    assert len(_move(piece, 0).merged()) > MOST_DIMS
