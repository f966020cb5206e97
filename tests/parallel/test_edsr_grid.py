"""One image upscaled by ranks that share it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edsr import upscale
from edsr.data import synthetic_image
from edsr.model import edsr, write_architecture
from tests.conftest import Launch
from training.checkpoint import save_checkpoint


def test_ranks_that_share_an_image_write_what_one_process_writes(
    launch: Launch, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = edsr(2, blocks=2, features=8)
    arch = write_architecture(model.architecture)
    checkpoint = tmp_path / "checkpoint.pt"
    save_checkpoint(checkpoint, {"kind": "edsr", "arch": arch, "model": model.state_dict()})
    photo = Image.fromarray(synthetic_image(1, 1, 60)).crop((0, 0, 60, 45))
    photo.save(tmp_path / "in.png")
    flags = [str(tmp_path / "in.png"), "--checkpoint", str(checkpoint), "--self-ensemble"]
    upscale.main([*flags, str(tmp_path / "one.png")])

    command = ["-m", "edsr.upscale", *flags]
    shape = ["--grid", "1x3", "--tile", 17]
    done = launch(3, [*command, tmp_path / "three.png", *shape])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("60x45 -> 120x90") == 1
    one, three = (
        np.asarray(Image.open(tmp_path / f"{name}.png")).astype(int) for name in ("one", "three")
    )
    assert three.shape == (90, 120, 3)
    # A float that ends in a half may be rounded either way.
    assert np.abs(one - three).max() <= 1
    assert np.mean(one != three) < 0.001

    done = launch(2, [*command, tmp_path / "none.png", "--grid", "3x1"])
    assert done.returncode == 2
    assert "edsr.upscale: error: --grid 3x1 takes 3 ranks, not 2: start as many" in done.stdout
    assert not (tmp_path / "none.png").exists()


def test_ranks_that_share_patches_learn_what_one_rank_learns(
    launch: Launch, tmp_path: Path
) -> None:
    flags = ("-m", "edsr.train", "--synthetic", "--blocks", 2, "--features", 8, "--patch", 17)
    flags = (*flags, "--batch-size", 1, "--steps", 3, "--log-every", 1, "--threads", 1)
    Image.fromarray(synthetic_image(1, 1, 48)).save(tmp_path / "truth.png")
    more = ("--batches-per-allreduce", 2, "--clip", 1, "--ema", 0.5)
    flags = (*flags, *more, "--validate", tmp_path / "truth.png")
    logs, judged = [], []
    for size, grid in ((1, "1x1"), (2, "1x2")):
        output = tmp_path / grid
        done = launch(size, (*flags, "--grid", grid, "--output", output))
        assert done.returncode == 0, done.stdout
        with (output / "log.csv").open() as stream:
            logs.append([float(row["loss"]) for row in csv.DictReader(stream)])
        with (output / "validation.csv").open() as stream:
            judged += [float(row["psnr_db"]) for row in csv.DictReader(stream)]
    assert len(logs[0]) == 3
    assert judged[1] == pytest.approx(judged[0], abs=0.01)
    assert logs[1] == pytest.approx(logs[0], rel=1e-5)
    # The trained weights are the whole model's, for whoever upscales with them.
    one, two = (torch.load(tmp_path / grid / "checkpoint.pt")["model"] for grid in ("1x1", "1x2"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-3, atol=1e-4, msg=name)
