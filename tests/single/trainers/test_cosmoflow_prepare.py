"""Cubes cut from universes in the layout of the public CosmoFlow data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cosmoflow.prepare import main
from hvd_ext.errors import UsageError

h5py = pytest.importorskip("h5py")

GROUP = object()  # in place of a dataset


def write(path: Path, side: int = 64, seed: int = 0, **changed: object) -> np.ndarray:
    rng = np.random.default_rng(seed)
    counts = rng.poisson(1, (side, side, side, 4)).astype(np.int16)
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        held = {"full": counts, "unitPar": rng.uniform(-1, 1, 4), "namePar": np.arange(4)}
        for name, values in {**held, **changed}.items():
            if values is GROUP:
                file.create_group(name)
            elif values is not None:
                file[name] = values
    return counts


def test_cubes_are_where_they_were_and_have_their_universes_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    universes = [write(tmp_path / "in" / f"{n}.hdf5", seed=n) for n in (0, 1)]
    arguments = [str(tmp_path / "in"), "--width", "32", "--output", str(tmp_path / "out")]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["universes"], told["cubes"], told["dtype"]) == (2, 16, "int16")
    cubes = np.load(tmp_path / "out" / "cubes.npy", mmap_mode="r")
    labels = np.load(tmp_path / "out" / "labels.npy")
    assert (cubes.shape, cubes.dtype) == ((16, 4, 32, 32, 32), np.int16)
    # Cube 8 + 4 z + 2 y + x is the second universe's at (z, y, x), in slabs of 32.
    expected = universes[1][32:64, 0:32, 32:64]
    assert np.array_equal(cubes[8 + 4 + 1], np.moveaxis(expected, -1, 0))
    assert sum(int(universe.sum()) for universe in universes) == int(cubes.sum(dtype=np.int64))
    with h5py.File(tmp_path / "in" / "1.hdf5") as file:
        assert np.array_equal(labels[8:], np.tile(file["unitPar"][:].astype("f4"), (8, 1)))
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"full": None}, r"b\.h5 has no numbers full: give files with full \(W, W, W, 4\) "),
        ({"full": GROUP}, r"b\.h5 has no numbers full: give files with"),
        ({"unitPar": GROUP}, r"b\.h5 has no numbers unitPar: give files with"),
        ({"full": h5py.Empty("i2")}, r"b\.h5 has no numbers full: give files with"),
        ({"unitPar": np.array([b"x"] * 4)}, r"b\.h5 has no numbers unitPar: give files with"),
        ({"full": np.int16(3)}, r"full \(\) and unitPar \(4,\) are not"),
        ({"full": np.zeros((0, 0, 0, 4))}, "0 cells a side are not a multiple of --width 32"),
        ({"unitPar": np.array([0, 0, 0, -1.5])}, r"-1\.5\] are not within -1\.\.1: leave this"),
        ({"unitPar": np.zeros(3)}, r"unitPar \(3,\) are not \(W, W, W, 4\) and \(4,\)"),
        ({"unitPar": np.full(4, np.nan)}, "are not finite: leave this file out"),
        ({"full": np.zeros((4, 64, 64, 64))}, r"full \(4, 64, 64, 64\)"),
        ({"full": np.zeros((48, 48, 48, 4))}, "48 cells a side are not a multiple of --width 32"),
        ({"full": np.zeros((32, 32, 32, 4))}, "prepare them apart"),
    ],
)
def test_files_that_are_no_universes(
    tmp_path: Path, changed: dict[str, object], complaint: str
) -> None:
    write(tmp_path / "a.h5")
    write(tmp_path / "b.h5", **changed)
    files = [str(tmp_path / f"{name}.h5") for name in "ab"]
    with pytest.raises(UsageError, match=complaint):
        main([*files, "--width", "32", "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("not HDF5")
    for name, complaint in (("text.h5", "is not an HDF5 file"), ("none.h5", "is not an HDF5 file")):
        with pytest.raises(UsageError, match=complaint):
            main([str(tmp_path / name), "--output", str(tmp_path / "out")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \.hdf5 or \.h5 file is there"):
        main([str(tmp_path / "empty"), "--output", str(tmp_path / "out")])


@pytest.mark.parametrize("wrong", [-1, np.nan])
def test_what_is_no_count_is_refused_and_leaves_no_cubes(tmp_path: Path, wrong: float) -> None:
    counts = np.ones((32, 32, 32, 4), np.float32)
    counts[9, 8, 7, 3] = wrong
    write(tmp_path / "a.h5", full=counts)
    with pytest.raises(UsageError, match=r"a\.h5: full holds .* no count of particles: leave"):
        main([str(tmp_path / "a.h5"), "--width", "32", "--output", str(tmp_path / "out")])
    assert not list((tmp_path / "out").iterdir())


def test_each_universe_counts_once_and_hidden_files_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / "a.h5", side=32)
    write(folder / "B.HDF5", side=32, seed=1)
    for hidden in (folder / "._a.h5", folder / ".trash" / "c.h5"):
        hidden.parent.mkdir(exist_ok=True)
        hidden.write_text("not HDF5")
    (tmp_path / "link.h5").symlink_to(folder / "a.h5")
    arguments = ["--width", "32", "--output", str(tmp_path / "out")]
    assert main([str(folder), *arguments]) == 0
    assert len(np.load(tmp_path / "out" / "labels.npy")) == 2
    for twice in (folder / "a.h5", tmp_path / "link.h5", folder):
        with pytest.raises(UsageError, match=r"\.(h5|HDF5) is named twice: name each file"):
            main([str(folder), str(twice), *arguments])
