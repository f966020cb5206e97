"""What the mesh and CosmoFlow trainers refuse before they start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cosmoflow.train
import mesh.train
from hvd_ext.errors import UsageError
from training.exchanges import alone


@pytest.mark.parametrize("grid", ["2", "2x0", "2x-1", "x", "2x1x1", "axb", ""])
def test_what_is_no_grid(tmp_path: Path, grid: str) -> None:
    with pytest.raises(UsageError, match="give 2 whole numbers, such as 2x1"):
        mesh.train.parser().parse_args(["--synthetic", "--output", str(tmp_path), f"--grid={grid}"])


def test_a_grid_has_an_axis_for_each_dim(tmp_path: Path) -> None:
    arguments = ["--synthetic", "--output", str(tmp_path)]
    assert mesh.train.parser().parse_args([*arguments, "--grid", "2X3"]).grid == (2, 3)
    cubes = cosmoflow.train.parser().parse_args([*arguments, "--grid", "2x1x4"])
    assert cubes.grid == (2, 1, 4)


@pytest.mark.parametrize(
    ("inputs", "masks", "complaint"),
    [
        ((2, 18, 30, 32), (2, 1, 30, 32), "multiples of 4"),
        ((2, 3, 32, 32), (2, 1, 32, 32), r"are not \(N, 18, H, W\)"),
        ((2, 18, 32, 32), (1, 1, 32, 32), "do not fit inputs"),
        ((2, 18, 32), (2, 1, 32), r"are not \(N, 18, H, W\)"),
    ],
)
def test_meshes_that_do_not_fit(
    tmp_path: Path, inputs: tuple[int, ...], masks: tuple[int, ...], complaint: str
) -> None:
    np.save(tmp_path / "inputs.npy", np.zeros(inputs, "f4"))
    np.save(tmp_path / "masks.npy", np.zeros(masks, "f4"))
    args = mesh.train.parser().parse_args(["--data", str(tmp_path), "--output", "out"])
    with pytest.raises(UsageError, match=complaint):
        mesh.train.task(args, alone)


def test_reshape_cannot_be_split() -> None:
    arguments = ["--synthetic", "--output", "out", "--prediction", "reshape"]
    mesh.train.task(mesh.train.parser().parse_args(arguments), alone)
    args = mesh.train.parser().parse_args([*arguments, "--grid", "2x1"])
    with pytest.raises(UsageError, match="with --grid use pixel_shuffle"):
        mesh.train.task(args, alone)


@pytest.mark.parametrize(
    ("cubes", "labels", "complaint"),
    [
        ((1, 4, 8, 8, 8), (1, 4), "width 8 is not one of 32, 64"),
        ((1, 4, 32, 32, 16), (1, 4), r"are not \(N, 4, W, W, W\)"),
        ((1, 4, 32, 32, 32), (1, 3), "do not fit 1 cubes"),
    ],
)
def test_cubes_that_do_not_fit(
    tmp_path: Path, cubes: tuple[int, ...], labels: tuple[int, ...], complaint: str
) -> None:
    np.save(tmp_path / "cubes.npy", np.zeros(cubes, "f4"))
    np.save(tmp_path / "labels.npy", np.zeros(labels, "f4"))
    args = cosmoflow.train.parser().parse_args(["--data", str(tmp_path), "--output", "out"])
    with pytest.raises(UsageError, match=complaint):
        cosmoflow.train.task(args, alone)
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(UsageError, match=r"labels\.npy does not exist"):
        cosmoflow.train.task(args, alone)
