"""The literature's protocol: MATLAB's bicubic, PSNR and SSIM, given small images."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from edsr import bicubic, metrics
from edsr.data import synthetic_image
from edsr.images import resize_bicubic, shrink
from edsr.model import edsr, write_architecture
from tests.support.training.trainer_runs import run_in_turn
from training.checkpoint import save_checkpoint

ROOT = Path(__file__).parents[3]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "edsr" / "bicubic.json").read_text())


@pytest.mark.parametrize("name", ["astronaut", "chelsea", "coffee"])
@pytest.mark.parametrize("scale", [2, 3, 4])
def test_bicubic_is_matlabs(name: str, scale: int) -> None:
    picture = getattr(data, name)()
    low, high = shrink(picture, scale)
    golden = GOLDEN[name][str(scale)]
    assert low.mean() == pytest.approx(golden["low_mean"], abs=1e-5)
    enlarged = resize_bicubic(low, *high.shape[:2])
    assert metrics.psnr_db(enlarged, high, 0) == pytest.approx(golden["psnr_db"], abs=1e-4)


def test_taps_reach_over_the_border_of_a_tiny_image() -> None:
    for count, length in ((1, 3), (2, 7), (3, 1), (5, 2)):
        places, weights = bicubic.taps(count, length)
        assert places.min() >= 0
        assert places.max() < count
        assert np.allclose(weights.sum(axis=1), 1)
    flat = np.full((3, 2, 3), 77, np.uint8)
    assert (bicubic.resize(flat, 7, 1) == 77).all()


def test_psnr_of_a_known_error() -> None:
    truth = np.full((40, 40, 3), 100, np.uint8)
    result = truth + np.uint8(5)
    result[:8] = 255
    expected = 20 * np.log10(255 / 5)
    assert metrics.psnr_db(result, truth, 8) == pytest.approx(expected)
    # The weights of luma add up to 219.859 of 256.
    luma = expected - 20 * np.log10(219.859 / 256)
    assert metrics.psnr_db(result, truth, 8, luma=True) == pytest.approx(luma)
    assert metrics.psnr_db(truth, truth, 0) == float("inf")


@pytest.mark.parametrize("shave", [2, 8])
def test_psnr_is_scikit_images(shave: int) -> None:
    truth = synthetic_image(1, 1, 48)
    result = resize_bicubic(resize_bicubic(truth, 24, 24), 48, 48)
    inner = (slice(shave, -shave), slice(shave, -shave))
    expected = peak_signal_noise_ratio(truth[inner], result[inner], data_range=255)
    assert metrics.psnr_db(result, truth, shave) == pytest.approx(expected)


def test_ssim_is_wang_et_als() -> None:
    """Against scikit-image's own on what is left after shaving, and 1 for equal images."""
    truth = synthetic_image(1, 1, 48)
    result = resize_bicubic(resize_bicubic(truth, 24, 24), 48, 48)
    inner = (slice(4, -4), slice(4, -4))
    by_colour = [
        structural_similarity(
            result[inner][..., colour].astype(float),
            truth[inner][..., colour].astype(float),
            gaussian_weights=True,
            use_sample_covariance=False,
            data_range=255,
        )
        for colour in range(3)
    ]
    assert metrics.ssim(result, truth, 4) == pytest.approx(np.mean(by_colour))
    assert metrics.ssim(truth, truth, 4, luma=True) == pytest.approx(1)


def evaluate(ranks: int, *flags: object) -> subprocess.CompletedProcess[str]:
    bin_folder = Path(sys.executable).parent
    launcher = [str(bin_folder / "horovodrun"), "-np", str(ranks)]
    return subprocess.run(
        [*launcher, sys.executable, "-m", "edsr.evaluate", *map(str, flags)],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photographs in two sets, their small images as DIV2K names them, a checkpoint."""
    root = tmp_path_factory.mktemp("protocol")
    for part, numbers in (("one", (1, 2)), ("two", (3,))):
        (root / part).mkdir()
        (root / f"{part}_low").mkdir()
        for number in numbers:
            image = synthetic_image(1, number, 52)
            Image.fromarray(image).save(root / part / f"080{number}.png")
            low, _ = shrink(image, 2)
            Image.fromarray(low).save(root / f"{part}_low" / f"080{number}x2.png")
    for name in ("again/0802.jpg", "bad/small.png"):
        (root / name).parent.mkdir()
        Image.fromarray(synthetic_image(1, 1, 20)).save(root / name)
    for number in range(11):
        (root / "bad" / f"{number:02d}.png").write_text("no image")
    torch.manual_seed(0)
    model = edsr(2, blocks=1, features=4)
    arch = write_architecture(model.architecture)
    save_checkpoint(root / "a.pt", {"kind": "edsr", "arch": arch, "model": model.state_dict()})
    return root


UNFIT = {
    ("one_low",): "--low names 1 folders for 2 of --data: give as many",
    ("one_low", "one_low"): "holds no small image of 0803.png, such as 0803x2.png",
    ("one", "two"): "is 52x52, its small image 52x52: that is not 1/2 of it",
}
Runs = Mapping[str, "subprocess.CompletedProcess[str]"]


def flags_of(folder: Path) -> tuple[object, ...]:
    sets = (folder / "one", folder / "two")
    return ("--checkpoint", folder / "a.pt", "--data", *sets, "--json")


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What one process makes of the images, and of small ones that do not fit."""
    commands = {
        message: ("edsr.evaluate", *flags_of(folder), "--low", *(folder / name for name in low))
        for low, message in UNFIT.items()
    }
    commands["made"] = ("edsr.evaluate", *flags_of(folder))
    twice = ("--data", folder / "one", folder / "one_low" / "0801x2.png", folder / "again")
    commands["twice"] = (*commands["made"], *twice, "--save-results", folder / "lost")
    commands["bad"] = (*commands["made"], "--data", folder / "one", folder / "bad")
    return run_in_turn(0, tmp_path_factory.mktemp("alone"), commands)


def test_ranks_share_the_images_and_given_ones_equal_those_that_are_made(
    folder: Path, alone: Runs
) -> None:
    sets = (folder / "one", folder / "two")
    lows = ("--low", folder / "one_low", folder / "two_low")
    shared = evaluate(2, *flags_of(folder), *lows, "--save-results", folder / "results")
    for done in (alone["made"], shared):
        assert done.returncode == 0, done.stderr
    made = json.loads(alone["made"].stdout)
    given = json.loads(re.sub(r"\[1,\d+\]<stdout>:", "", shared.stdout))
    assert given["images"] == made["images"]
    assert len(made["images"]) == 3
    assert given["note"].startswith("small images given")
    assert set(made["sets"]) == {str(path) for path in sets}
    row = made["images"][str(folder / "two" / "0803.png")]
    assert made["sets"][str(folder / "two")] == row
    truth = synthetic_image(1, 3, 52)
    low, _ = shrink(truth, 2)
    enlarged = resize_bicubic(low, 52, 52)
    assert row["bicubic_rgb_db"] == metrics.psnr_db(enlarged, truth, 8)
    assert row["bicubic_y_ssim"] == metrics.ssim(enlarged, truth, 2, luma=True)
    with Image.open(folder / "results" / "0803_x2.png") as result:
        assert row["edsr_y_db"] == metrics.psnr_db(np.asarray(result), truth, 2, luma=True)


def test_small_images_that_do_not_fit_are_refused(alone: Runs) -> None:
    for message in UNFIT.values():
        done = alone[message]
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert message in line


def test_results_of_equal_names_do_not_replace_each_other(folder: Path, alone: Runs) -> None:
    done = alone["twice"]
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{folder}/one/0802.png and {folder}/again/0802.jpg would both be saved as " in line
    assert not (folder / "lost").exists()


def test_all_images_that_cannot_be_used_are_named_at_once(folder: Path, alone: Runs) -> None:
    done = alone["bad"]
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("edsr.evaluate: error: 12 of 14 images cannot be used: ")
    for number in range(10):
        assert f"{folder}/bad/{number:02d}.png is not a readable image" in line
    assert line.endswith("; and 2 more")
