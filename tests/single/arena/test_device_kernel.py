"""The device arena's kernel: compiled for GPUs where nvcc is, and run on the host."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.arena.cuda.arena import vectors
from hvd_ext.arena.cuda.kernels import SERVED
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.dtypes import DTYPES
from testbed.cuda_stand_in.kernels import compile_for_host

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]
ARENA = ROOT / "hvd_ext" / "arena" / "cuda"
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
RANKS, BUCKET_BYTES = 3, 1 << 16
SCALE = 1 / 3

Launch = Callable[[str, list[torch.Tensor], int, int], None]


@pytest.fixture(scope="module")
def launch() -> Launch:
    """Runs the kernel of a dtype on (first, count) of the ranks' memories."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    loaded = compile_for_host((ARENA / "reduce.cu").read_text(encoding="utf-8"))

    def launch(dtype: str, memories: list[torch.Tensor], first: int, count: int) -> None:
        addresses = (ctypes.c_void_p * len(memories))(*(m.data_ptr() for m in memories))
        kernel = ctypes.cast(getattr(loaded, f"reduce_{dtype}"), ctypes.c_void_p)
        where = (ctypes.c_uint64(first), ctypes.c_uint64(count))
        table = (addresses, len(memories))
        loaded.run(kernel, 5, 7, *table, *table, *where, ctypes.c_float(SCALE))

    return launch


def every_kind_of_value(dtype: str, count: int, rank: int) -> torch.Tensor:
    """Numbers of all magnitudes, and of 16-bit types every pattern of bits there is."""
    if DTYPES[dtype].item_bytes == 2:
        patterns = np.random.default_rng(rank).permutation(1 << 16).astype(np.uint16)
        bits = np.resize(patterns, count)
    else:
        bits = np.random.default_rng(rank).integers(0, 1 << 32, count, dtype=np.uint32)
    return torch.from_numpy(bits).view(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", SERVED)
def test_the_kernel_sums_in_order_of_ranks_and_rounds_once(launch: Launch, dtype: str) -> None:
    vector = 16 // DTYPES[dtype].item_bytes
    count, first = 70_000 * vector // 8, 3
    memories = [every_kind_of_value(dtype, count, rank) for rank in range(RANKS)]
    before = [memory.clone() for memory in memories]
    launch(dtype, memories, first, count // vector - 5)
    total = before[0].float()
    for part in before[1:]:
        total = total + part.float()
    expected = (total * torch.tensor(SCALE)).to(before[0].dtype)
    inside = slice(first * vector, first * vector + (count // vector - 5) * vector)
    for memory, old in zip(memories, before, strict=True):
        got, wanted = memory[inside], expected[inside]
        same = got.view(torch.uint8).view(-1, DTYPES[dtype].item_bytes) == wanted.view(
            torch.uint8
        ).view(-1, DTYPES[dtype].item_bytes)
        # Of what is not a number only that counts.
        assert bool((same.all(dim=1) | (got.isnan() & wanted.isnan())).all())
        for outside in (slice(0, inside.start), slice(inside.stop, None)):
            assert torch.equal(memory[outside].view(torch.uint8), old[outside].view(torch.uint8))


@given(
    st.lists(st.tuples(st.integers(0, 70_000), st.sampled_from(SERVED)), min_size=1, max_size=8),
    st.integers(1, 9),
)
def test_shares_are_whole_vectors_that_cover_every_bucket(
    parameters: list[tuple[int, str]], size: int
) -> None:
    specs = [
        ParameterSpec(str(index), (count,), (1,), dtype)
        for index, (count, dtype) in enumerate(parameters)
    ]
    for bucket in layout_by_size(specs, BUCKET_BYTES).buckets:
        at = bucket.offset_bytes
        for rank in range(size):
            first, count = vectors(bucket, size, rank)
            assert first * 16 == at
            at += count * 16
        assert at == bucket.offset_bytes + bucket.message_bytes


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernel_compiles(tmp_path: Path, architecture: str) -> None:
    target = tmp_path / "reduce.cubin"
    command = [str(NVCC), "-cubin", f"-arch={architecture}", "-Werror", "all-warnings"]
    subprocess.run([*command, str(ARENA / "reduce.cu"), "-o", str(target)], check=True)
    assert target.stat().st_size > 0
