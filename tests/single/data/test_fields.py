"""A packed field is indexed as the array that it was made from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from hvd_ext.data import PackedFile
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.packed import PackedField
from hvd_ext.data.packed.sources import Arrays

ARRAY = np.arange(6 * 4 * 5, dtype=np.float32).reshape(6, 4, 5)


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> PackedField:
    path = tmp_path_factory.mktemp("packs") / "x.pack"
    pack(Arrays({"before": ARRAY[:, 0], "x": ARRAY}), path, lambda *_: None)
    return PackedFile(path).field("x")


@pytest.mark.parametrize(
    "index",
    [
        *(np.s_[:], np.s_[0], np.s_[-1], np.s_[1:3], np.s_[...], np.s_[..., 2], np.s_[2, ...]),
        *(np.s_[::2], np.s_[:, ::-1], np.s_[5:2], np.s_[4:99], np.s_[::-2, 1, ::3], np.s_[()]),
        *(np.s_[1, 2, 3], np.s_[np.int64(2)], np.s_[:, :, ...], np.s_[:, 3:3]),
    ],
    ids=repr,
)
def test_numbers_and_slices_are_numpys(field: PackedField, index: Any) -> None:
    found = field[index]
    assert np.array_equal(found, ARRAY[index])
    assert (np.shape(found), found.dtype) == (np.shape(ARRAY[index]), ARRAY.dtype)


@given(index=hypothesis_numpy.basic_indices(ARRAY.shape, allow_newaxis=False))
def test_any_basic_index_is_numpys(field: PackedField, index: Any) -> None:
    found = field[index]
    assert np.array_equal(found, ARRAY[index])
    assert np.shape(found) == np.shape(ARRAY[index])


def test_a_field_is_as_long_as_its_samples_and_iterates_over_them(field: PackedField) -> None:
    assert len(field) == 6
    assert np.array_equal(np.stack(list(field)), ARRAY)
    assert np.array_equal(np.asarray(field), ARRAY)


@pytest.mark.parametrize("index", [np.s_[[0, 2]], np.s_[None], np.s_[True], np.s_[:, "x"], ARRAY])
def test_other_indices_are_refused(field: PackedField, index: Any) -> None:
    with pytest.raises(TypeError, match=r"use numbers, slices and \.\.\.") as error:
        field[index]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("index", [6, -7, np.s_[:, 4], np.s_[0, 0, 0, 0], np.s_[..., ...]])
def test_elements_that_are_not_there_are_refused(field: PackedField, index: Any) -> None:
    with pytest.raises(IndexError):
        field[index]


@given(step=st.sampled_from([2, 3, -1]))
def test_a_step_reads_only_the_samples_that_it_chooses(field: PackedField, step: int) -> None:
    before = field.file.bytes_read
    chosen = len(field[::step])
    assert field.file.bytes_read - before == chosen * int(field.file.lengths[0])
