"""Images that ranks share, upscaled and learnt from."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edsr import upscale
from edsr.data import synthetic_image
from edsr.model import edsr, write_architecture
from tests.support.training.trainer_runs import losses, read_log, refusals, run_in_turn, train
from training.checkpoint import save_checkpoint

TRAIN = ("edsr.train", "--synthetic", "--blocks", 2, "--features", 8, "--patch", 17)
TRAIN = (*TRAIN, "--batch-size", 1, "--steps", 3, "--log-every", 1)
Runs = Mapping[str, "subprocess.CompletedProcess[str]"]
TRAIN = (*TRAIN, "--batches-per-allreduce", 2, "--clip", 1, "--ema", 0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the images, a model, and the outputs of `runs`."""
    folder = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    model = edsr(2, blocks=2, features=8)
    arch = write_architecture(model.architecture)
    held = {"kind": "edsr", "arch": arch, "model": model.state_dict()}
    save_checkpoint(folder / "checkpoint.pt", held)
    photo = Image.fromarray(synthetic_image(1, 1, 60)).crop((0, 0, 60, 45))
    photo.save(folder / "in.png")
    Image.fromarray(synthetic_image(1, 1, 48)).save(folder / "truth.png")
    return folder


def upscaled(folder: Path, output: str, *shape: object) -> tuple[object, ...]:
    flags = ("--checkpoint", folder / "checkpoint.pt", "--self-ensemble")
    return (folder / "in.png", folder / output, *flags, *shape)


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What the tests look at, in one job of three ranks."""
    commands = {
        "upscaled": ("edsr.upscale", *upscaled(folder, "3.png", "--grid", "1x3", "--tile", 23)),
        "refused": ("edsr.upscale", *upscaled(folder, "none.png", "--grid", "2x1")),
    }
    return run_in_turn(3, tmp_path_factory.mktemp("job"), commands)


def test_ranks_that_share_an_image_write_what_one_process_writes(runs: Runs, folder: Path) -> None:
    upscale.main([*map(str, upscaled(folder, "1.png"))])
    assert runs["upscaled"].returncode == 0, runs["upscaled"].stderr
    assert runs["upscaled"].stdout.count("60x45 -> 120x90") == 1
    one, three = (np.asarray(Image.open(folder / f"{n}.png")).astype(int) for n in (1, 3))
    assert three.shape == (90, 120, 3)
    # A float that ends in a half may be rounded either way.
    assert np.abs(one - three).max() <= 1
    assert np.mean(one != three) < 0.001


def test_ranks_that_a_grid_does_not_take_are_refused(runs: Runs, folder: Path) -> None:
    (line,) = refusals(runs["refused"], "edsr.upscale")
    assert "edsr.upscale: error: --grid 2x1 takes 2 ranks, not 3: start as many" in line
    assert runs["refused"].returncode == 2
    assert not (folder / "none.png").exists()


@pytest.mark.long
def test_ranks_that_share_patches_learn_what_one_rank_learns(folder: Path) -> None:
    judged = (*TRAIN, "--validate", folder / "truth.png")
    train(1, *judged, "--output", folder / "1x1")
    train(3, *judged, "--grid", "1x3", "--output", folder / "1x3")
    outputs = [folder / grid for grid in ("1x1", "1x3")]
    logs = [[float(loss) for loss in losses(output)] for output in outputs]
    judged = [float(read_log(of, "validation.csv")[0]["psnr_db"]) for of in outputs]
    assert len(logs[0]) == 3
    assert judged[1] == pytest.approx(judged[0], abs=0.01)
    assert logs[1] == pytest.approx(logs[0], rel=1e-5)
    # The trained weights are the whole model's, for whoever upscales with them.
    one, three = (torch.load(output / "checkpoint.pt")["model"] for output in outputs)
    for name, weight in one.items():
        torch.testing.assert_close(three[name], weight, rtol=1e-3, atol=1e-4, msg=name)
