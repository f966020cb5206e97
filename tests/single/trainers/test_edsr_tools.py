"""edsr.upscale and edsr.photographs, as a user calls them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edsr import photographs, upscale
from edsr.data import synthetic_image
from edsr.model import EDSR, edsr, write_architecture
from hvd_ext.errors import UsageError
from training.checkpoint import save_checkpoint


@pytest.fixture(scope="module")
def model() -> EDSR:
    torch.manual_seed(0)
    return edsr(2, blocks=2, features=8).eval()


@pytest.fixture
def checkpoint(tmp_path: Path, model: EDSR) -> str:
    path = tmp_path / "checkpoint.pt"
    arch = write_architecture(model.architecture)
    save_checkpoint(path, {"kind": "edsr", "arch": arch, "model": model.state_dict()})
    return str(path)


@pytest.fixture
def photo() -> Image.Image:
    return Image.fromarray(synthetic_image(1, 1, 60)).crop((0, 0, 60, 45))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("RGB", "RGB"), ("L", "RGB"), ("P", "RGB"), ("1", "RGB"), ("RGBA", "RGBA"), ("LA", "RGBA")],
)
def test_upscale_takes_any_mode(
    tmp_path: Path, checkpoint: str, photo: Image.Image, mode: str, expected: str
) -> None:
    photo.putalpha(Image.linear_gradient("L").resize(photo.size))
    source = photo.convert(mode) if mode in ("RGBA", "LA") else photo.convert("RGB").convert(mode)
    source.save(tmp_path / "in.png")
    arguments = [str(tmp_path / "in.png"), str(tmp_path / "out.png"), "--checkpoint", checkpoint]
    assert upscale.main([*arguments, "--tile", "16"]) == 0
    with Image.open(tmp_path / "out.png") as result:
        assert (result.size, result.mode) == ((120, 90), expected)
        if expected == "RGBA":
            alpha = source.getchannel("A").resize((120, 90), Image.Resampling.BICUBIC)
            assert result.getchannel("A").tobytes() == alpha.tobytes()


@pytest.mark.parametrize("space", ["RGB ", "CMYK", "GRAY"])
def test_upscale_keeps_the_profile_of_rgb(
    tmp_path: Path, checkpoint: str, photo: Image.Image, space: str
) -> None:
    profile = bytes(16) + space.encode() + bytes(108)
    photo.save(tmp_path / "in.png", icc_profile=profile)
    for ending in ("png", "jpg", "tif"):
        out = tmp_path / f"out.{ending}"
        assert upscale.main([str(tmp_path / "in.png"), str(out), "--checkpoint", checkpoint]) == 0
        with Image.open(out) as result:
            assert result.info.get("icc_profile") == (profile if space == "RGB " else None)


def test_tiles_and_whole_write_the_same_image(
    tmp_path: Path, checkpoint: str, photo: Image.Image
) -> None:
    photo.save(tmp_path / "in.png")
    results = []
    for tile in ("13", "256"):
        out = tmp_path / f"{tile}.png"
        upscale.main(
            [str(tmp_path / "in.png"), str(out), "--checkpoint", checkpoint, "--tile", tile]
        )
        results.append(np.asarray(Image.open(out)).astype(int))
    assert np.abs(results[0] - results[1]).max() <= 1


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("missing.png", "out.png", "missing.png does not exist"),
        ("checkpoint.pt", "out.png", "is not a readable image"),
        ("in.png", "out.xyz", "cannot hold an image of mode RGBA: end it in .png"),
        ("in.png", "no/out.png", "does not exist: make it first"),
        ("in.png", "out.jpg", "cannot hold an image of mode RGBA: end it in .png"),
    ],
)
def test_upscale_refuses_and_writes_nothing(
    tmp_path: Path, checkpoint: str, photo: Image.Image, source: str, target: str, message: str
) -> None:
    photo.putalpha(128)
    photo.save(tmp_path / "in.png")
    before = sorted(tmp_path.iterdir())
    arguments = [str(tmp_path / source), str(tmp_path / target), "--checkpoint", checkpoint]
    with pytest.raises(UsageError, match=message):
        upscale.main(arguments)
    assert sorted(tmp_path.iterdir()) == before


def test_the_mean_of_the_orientations_turns_with_the_image(
    tmp_path: Path, checkpoint: str, photo: Image.Image
) -> None:
    results = []
    for name, image in (("a", photo), ("b", photo.transpose(Image.Transpose.ROTATE_90))):
        image.save(tmp_path / f"{name}.png")
        arguments = [str(tmp_path / f"{name}.png"), str(tmp_path / f"{name}2.png")]
        upscale.main([*arguments, "--checkpoint", checkpoint, "--self-ensemble"])
        results.append(Image.open(tmp_path / f"{name}2.png"))
    turned = np.asarray(results[0].transpose(Image.Transpose.ROTATE_90)).astype(int)
    assert np.abs(turned - np.asarray(results[1])).max() <= 1


def test_photographs_are_all_there_and_licensed(tmp_path: Path) -> None:
    assert photographs.main([str(tmp_path)]) == 0
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.*")}
    assert "test/astronaut.png" in files
    notes = (tmp_path / "README.txt").read_text()
    assert all(f"{name}: " in notes for name in files - {"README.txt"})


def test_an_error_is_one_line_and_exit_code_two() -> None:
    command = [sys.executable, "-m", "edsr.upscale", "no.png", "out.png", "--checkpoint", "no.pt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "edsr.upscale: error: no.png does not exist: name an image\n"
