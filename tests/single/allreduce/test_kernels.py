"""Kernels of 16-bit floats: every form gives the same bits, which numpy's arithmetic gives too."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import hvd_ext.shm
from hvd_ext.allreduce.algorithms.half import narrow, widen
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError
from hvd_ext.shm.library import FORMS, load_library, use_kernels
from hvd_ext.shm.window import OPERATIONS

PATTERNS = np.arange(1 << 16, dtype=np.uint16)
SOURCE = Path(__file__).parents[2] / "programs" / "arena" / "kernels.c"
SCALES = (1.0, 1 / 3, 3.0e-5)


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """A library of each form that this CPU has."""
    found = {}
    folder = tmp_path_factory.mktemp("kernels")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-O3", "-fwrapv", "-shared", "-fPIC"]
    include = f"-I{Path(hvd_ext.shm.__file__).parent}"
    compiled = folder / "lib.so"
    subprocess.run([*compiler, *flags, include, str(SOURCE), "-o", str(compiled)], check=True)
    for form in FORMS:
        library = ctypes.CDLL(shutil.copy(compiled, folder / f"lib{form}.so"))
        number, pointer = ctypes.c_int, ctypes.c_void_p
        library.combine.argtypes = [number, number, pointer, number, pointer, number]
        library.combine.argtypes += [ctypes.c_uint64, ctypes.c_double]
        try:
            use_kernels(library, form)
        except UsageError:
            continue
        found[form] = library
    return found


def combined(
    library: ctypes.CDLL, dtype: str, operation: str, parts: Sequence[np.ndarray], scale: float
) -> np.ndarray:
    """What a form makes of the parts, written to two outputs; one of them begins anywhere."""
    count = len(parts[0])
    outs = [np.zeros(count + 40, np.uint16)[start : start + count] for start in (0, 5)]
    pointers = ctypes.c_void_p * 4
    library.combine(
        list(DTYPES).index(dtype),
        OPERATIONS.index(operation),
        pointers(*(part.ctypes.data for part in parts)),
        len(parts),
        pointers(*(out.ctypes.data for out in outs)),
        len(outs),
        count,
        scale,
    )
    for out in outs:
        assert not out.base[: (out.ctypes.data - out.base.ctypes.data) // 2].any()
        assert not out.base[-35:].any(), "written beyond the end"
    np.testing.assert_array_equal(*outs)
    return outs[0]


def wide(part: np.ndarray, dtype: str) -> np.ndarray:
    held = np.empty(len(part), np.float32)
    widen(part.view(np.float16) if dtype == "float16" else part, held)
    return held


def reference(dtype: str, operation: str, parts: Sequence[np.ndarray], scale: float) -> np.ndarray:
    """The first NaN stays, with its payload; bfloat16 keeps it, float16 its sign alone."""
    held = wide(parts[0], dtype)
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            b = wide(part, dtype)
            if operation in ("min", "max"):
                held = np.where(b < held if operation == "min" else b > held, b, held)
            else:
                both = held + b if operation == "sum" else held * b
                held = np.where(np.isnan(held), held, both)
        nan = np.isnan(held)
        bits = held.view(np.uint32) | np.where(nan, np.uint32(0x400000), np.uint32(0))
        scaled = np.where(nan, bits.view(np.float32), held * np.float32(scale))
        if dtype == "float16":
            half = np.empty(len(held), np.float16)
            narrow(scaled, half)
            sign = (bits >> 16 & 0x8000).astype(np.uint16)
            return np.where(nan, sign | np.uint16(0x7E00), half.view(np.uint16))
        rounded = np.empty(len(held), np.uint16)
        narrow(scaled, rounded)
        return rounded


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pattern_with_a_sample_of_others(
    forms: dict[str, ctypes.CDLL], dtype: str, operation: str
) -> None:
    rng = np.random.default_rng(len(dtype) + OPERATIONS.index(operation))
    for round in range(12):
        others = rng.integers(0, 1 << 16, (3, 1 << 16), dtype=np.uint16)
        others[0, ::7] = rng.choice(np.array([0x7C01, 0xFF81, 0x7F82, 0xFE00], np.uint16), 9363)
        parts = [PATTERNS, *others[: round % 4]]
        rng.shuffle(parts)
        # Its length and its beginning are no vector's.
        parts = [part[round:-3] for part in parts]
        scale = SCALES[round % 3]
        expected = reference(dtype, operation, parts, scale)
        for name, library in forms.items():
            got = combined(library, dtype, operation, parts, scale)
            wrong = np.flatnonzero(got != expected)
            assert not wrong.size, (
                f"{name}: {[hex(part[wrong[0]]) for part in parts]} x {scale} gives "
                f"{got[wrong[0]]:#x}, not {expected[wrong[0]]:#x}"
            )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_length_up_to_two_vectors(forms: dict[str, ctypes.CDLL], dtype: str) -> None:
    for count in range(130):
        parts = [PATTERNS[start : start + count] for start in (0x3C01, 0x4000, 0xB123)]
        expected = reference(dtype, "sum", parts, 1.0)
        for library in forms.values():
            np.testing.assert_array_equal(combined(library, dtype, "sum", parts, 1.0), expected)


def test_a_form_that_is_not_there_is_refused(forms: dict[str, ctypes.CDLL]) -> None:
    for form in ("neon", *(form for form in FORMS if form not in forms)):
        with pytest.raises(UsageError, match=f"HVD_EXT_KERNELS='{form}'.*unset it"):
            use_kernels(forms["scalar"], form)


def test_a_variable_names_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    load_library.cache_clear()
    monkeypatch.setenv("HVD_EXT_KERNELS", "avx1024")
    try:
        with pytest.raises(UsageError, match="HVD_EXT_KERNELS='avx1024'"):
            load_library()
        monkeypatch.setenv("HVD_EXT_KERNELS", "scalar")
        load_library()
    finally:
        load_library.cache_clear()
