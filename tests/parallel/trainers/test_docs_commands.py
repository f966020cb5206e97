"""Every command of the first hour, the trainers and super-resolution runs, on little data."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edsr.data import synthetic_image
from edsr.images import shrink
from edsr.model import edsr
from resnet.model import resnet50
from testbed.ranks import ROOT, environment

# A page is many launches.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

# Of each program, what makes it short; the last of two equal flags holds.
_STEPS = ("--steps", "2", "--threads", "1")
SHORT = {
    "edsr.train": (*_STEPS, "--blocks", "1", "--features", "8", "--patch", "12"),
    "resnet.train": ("--image-size", "32", "--epochs", "1", "--threads", "1"),
    "cosmoflow.prepare": ("--width", "32"),
    "cosmoflow.train": (*_STEPS, "--samples", "16", "--held-out", "1", "--thin", "16"),
    "mesh.train": (*_STEPS, "--samples", "4", "--held-out", "1", "--size", "32"),
}
TIMED = ("--num-warmup-batches", "0", "--num-batches-per-iter", "1", "--num-iters", "1")


def commands(page: str) -> list[str]:
    """The page's commands, each on one line, without their comments."""
    text = (ROOT / "docs" / "guides" / page).read_text().replace("\\\n", " ")
    lines = re.findall(r"^    ((?:python|horovodrun|hvd-launch|curl) .*)$", text, re.MULTILINE)
    return [shlex.join(shlex.split(line, comments=True)) for line in lines]


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    program = words[words.index("-m") + 1] if "-m" in words else ""
    words += SHORT.get(program, ())
    if "--synthetic" in words and program == "resnet.train":
        words += [*TIMED, "--batch-size", "2"]
    if program == "resnet.train" and "imagenet/train" in words:
        words += ["--batch-size", "2"]
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment({"OMPI_MCA_mpi_yield_when_idle": "1"})
        | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def write_images(folder: Path, numbers: range, length: int = 64) -> None:
    folder.mkdir(parents=True)
    for number in numbers:
        Image.fromarray(synthetic_image(1, number, length)).save(folder / f"{number:04}.png")


def write_small(high: Path, low: Path) -> None:
    low.mkdir(parents=True)
    for path in high.iterdir():
        small, _ = shrink(np.asarray(Image.open(path)), 2, "matlab")
        Image.fromarray(small).save(low / f"{path.stem}x2.png")


def shown(page: str, *programs: str) -> list[str]:
    """The commands of a page that run one of some packages."""
    return [c for c in commands(page) if any(f" -m {name}." in c for name in programs)]


def test_each_command_is_run_below() -> None:
    programs = ("resnet", "mesh", "cosmoflow")
    assert shown("trainers.md", *programs) == commands("trainers.md")


def test_resnets_commands(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    for part, count in (("train", 4), ("val", 2)):
        for name in ("n01440764", "n01443537"):
            write_images(tmp_path / "imagenet" / part / name, range(count))
    torch.save(resnet50(2).state_dict(), tmp_path / "resnet50.pth")
    for command in shown("trainers.md", "resnet"):
        run(command, tmp_path)
    assert (tmp_path / "runs" / "digits" / "best.pt").is_file()


def test_cosmoflows_and_the_meshs_commands(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (tmp_path / "universes").mkdir()
    for number in range(2):
        with h5py.File(tmp_path / "universes" / f"{number}.hdf5", "w") as file:
            rng = np.random.default_rng(number)
            file["full"] = rng.poisson(1, (64, 64, 64, 4)).astype(np.int16)
            file["unitPar"], file["namePar"] = rng.uniform(-1, 1, 4), np.arange(4)
    for command in shown("trainers.md", "cosmoflow", "mesh"):
        run(command, tmp_path)
    assert len(list((tmp_path / "runs").glob("*/best.pt"))) == 3


def test_the_first_hours_commands(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    text = (ROOT / "docs" / "start" / "first_hour.md").read_text()
    page = re.findall(r"^    ((?:hvd-launch run|hvprof) .*)$", text, re.MULTILINE)
    script = (ROOT / "examples" / "digits.py").read_text()
    for old, new in (
        ("import hvd_ext.torch", "import hvprof\nimport hvd_ext.torch"),
        ("        optimizer.step()\n", "        optimizer.step()\n        hvprof.step()\n"),
        ("if hvd.rank() == 0:\n", "if hvd.rank() == 0:\n    print(optimizer.explain())\n"),
    ):
        assert old in script
        script = script.replace(old, new)
    (tmp_path / "digits.py").write_text(script)
    (tmp_path / "digits64.py").write_text(script.replace("BATCH = 32", "BATCH = 64"))
    printed = "".join(run(command, tmp_path) for command in page)
    assert len(page) == 5
    for words in (
        "held-out digits",
        "within a node: 2 ranks, each its shard straight from its peers' memory",
        "2 ranks recorded in runs/one",
        "Exposed communication takes",
        "a rank's time",
    ):
        assert words in printed


def test_super_resolutions_commands(tmp_path: Path) -> None:
    """Pictures and archives are made in place of the user's and of the downloads."""
    pytest.importorskip("skimage")
    write_images(tmp_path / "mine" / "train", range(4), 192)
    write_images(tmp_path / "mine" / "test", range(2))
    shutil.copy(tmp_path / "mine" / "test" / "0001.png", tmp_path / "photo.png")
    write_images(tmp_path / "Set5", range(2))
    write_small(tmp_path / "Set5", tmp_path / "Set5_X2")
    torch.save(edsr(2, blocks=1, features=8).state_dict(), tmp_path / "edsr_baseline_x2.pt")
    write_images(tmp_path / "made" / "DIV2K_train_HR", range(1, 5))
    write_images(tmp_path / "made" / "DIV2K_valid_HR", range(801, 803))
    low = tmp_path / "made" / "DIV2K_valid_LR_bicubic"
    write_small(tmp_path / "made" / "DIV2K_valid_HR", low / "X2")
    folders = {name.name: name for name in (tmp_path / "made").iterdir()}
    folders["DIV2K_valid_LR_bicubic_X2"] = folders.pop(low.name)
    for name, folder in folders.items():
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for path in sorted(folder.rglob("*.png")):
                archive.write(path, path.relative_to(tmp_path / "made"))
    page = commands("super_resolution.md")
    downloaded = {Path(command).name for command in page if command.startswith("curl")}
    assert downloaded == {path.name for path in tmp_path.glob("*.zip")}
    for command in page:
        if not command.startswith("curl"):
            run(command, tmp_path)
    made = ("large.png", "runs/mine/best.pt", "runs/x4/best.pt", "results/0801_x2.png")
    assert all((tmp_path / name).is_file() for name in made)
