"""Images that cannot be read cost no step: they are named first, or a checkpoint is written."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edsr.data import synthetic_image
from hvd_ext.data import Order
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import Arrays, ImageFolder
from tests.support.data.packed_by_rank_0 import damage
from tests.support.training.trainer_runs import read_log, refusals, run_in_turn, same

Runs = Mapping[str, "subprocess.CompletedProcess[str]"]
SEED, SAMPLES = 42, 12
# The others are started by long tests only.
IN_TEST = ("headers", "unbroken", "met", "met, repaired", "validated", "validated, repaired")
IN_TEST = (*IN_TEST, "skipped", "part", "mesh met")
# Of rank 1, in the third and last step of an epoch.
MET = Order(SAMPLES, SEED).sample(SAMPLES - 1)


def cut_off(path: Path) -> None:
    """Leave the header of an image, and half of its pixels."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two classes, whole and not, pairs for EDSR, a damaged packed file."""
    root = tmp_path_factory.mktemp("unreadable")
    rng = np.random.default_rng(0)
    for part, counts in (("train", (6, 6)), ("val", (3, 2))):
        for label, count in enumerate(counts):
            (root / part / f"class{label}").mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(0, 255, (40, 50, 3), np.uint8)
                Image.fromarray(noise).save(root / part / f"class{label}" / f"{number}.png")
    for part, name in (("train", f"class{MET // 6}/{MET % 6}.png"), ("val", "class1/1.png")):
        shutil.copytree(root / part, root / f"{part}_cut")
        cut_off(root / f"{part}_cut" / name)
        shutil.copytree(root / part, root / f"{part}_bad")
        (root / f"{part}_bad" / "class0" / "1.png").write_text("no image")
    shutil.copytree(root / "val" / "class1", root / "val_part" / "class1")
    for part, length, count in (("sr", 40, 3), ("sr_val", 44, 2)):
        (root / part).mkdir()
        for number in range(count):
            picture = Image.fromarray(synthetic_image(1, number, length))
            picture.save(root / part / f"{number}.png")
    shutil.copytree(root / "sr_val", root / "sr_val_cut")
    cut_off(root / "sr_val_cut" / "1.png")
    shutil.copytree(root / "sr", root / "sr_bad")
    for number in (0, 2):
        cut_off(root / "sr_bad" / f"{number}.png")
    pack(ImageFolder(root / "train"), root / "train.pack", lambda *_: None)
    damage(root / "train.pack", MET)
    inputs = rng.standard_normal((SAMPLES, 18, 16, 16)).astype(np.float32)
    masks = np.zeros((SAMPLES, 1, 16, 16), np.float32)
    pack(Arrays({"inputs": inputs, "masks": masks}), root / "mesh.pack", lambda *_: None)
    shutil.copy(root / "mesh.pack", root / "mesh_cut.pack")
    damage(root / "mesh_cut.pack", MET)
    return root


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Trainings, in one job of two ranks."""
    commands = {name: command for name, command in trainings(folder).items() if name in IN_TEST}
    return run_in_turn(2, tmp_path_factory.mktemp("runs"), commands)


@pytest.fixture(scope="module")
def all_runs(runs: Runs, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Those, and the others."""
    others = {name: command for name, command in trainings(folder).items() if name not in IN_TEST}
    return {**runs, **run_in_turn(2, tmp_path_factory.mktemp("runs"), others)}


def trainings(folder: Path) -> dict[str, tuple[object, ...]]:
    flags = ("--threads", 1, "--workers", 1, "--seed", SEED)

    def resnet(train: str, val: str, output: str, *more: object) -> tuple[object, ...]:
        folders = ("--train-dir", folder / train, "--val-dir", folder / val)
        out = ("--log-dir", folder / output, "--checkpoint-format", folder / output / "{epoch}.pt")
        net = ("--model", "resnet18", "--image-size", 32, "--batch-size", 2, "--epochs", 1)
        # With a checkpoint all ranks get the mean of their batch norms.
        every = () if output == "met" else ("--checkpoint-every", 2)
        return ("resnet.train", *folders, *out, *net, *every, *flags, *more)

    def edsr(data: str, val: str, output: str, *more: object) -> tuple[object, ...]:
        folders = ("--data", folder / data, "--validate", folder / val)
        net = ("--blocks", 1, "--features", 4, "--patch", 8, "--batch-size", 1, "--steps", 4)
        every = ("--validate-every", 2, "--checkpoint-every", 100, "--output", folder / output)
        return ("edsr.train", *folders, *net, *every, *flags, *more)

    def mesh(data: str, output: str, *more: object) -> tuple[object, ...]:
        paths = ("--data", folder / data, "--output", folder / output)
        size = ("--batch-size", 2, "--steps", 4, "--held-out", 0)
        return ("mesh.train", *paths, *size, *flags, *more)

    weights = ("--load", folder / "unbroken" / "1.pt", "--json", folder / "part.json")
    skips = ("--skip-unreadable", "--epochs", 2)
    return {
        "headers": resnet("train_bad", "val_bad", "headers"),
        "decoded": resnet("train_cut", "val_cut", "decoded", "--check-images"),
        "unbroken": resnet("train", "val", "unbroken"),
        "met": resnet("train_cut", "val", "met"),
        "met, repaired": resnet("train", "val", "met"),
        "validated": resnet("train", "val_cut", "validated"),
        "validated, repaired": resnet("train", "val", "validated"),
        "skipped": resnet("train_cut", "val_cut", "skipped", "--skip-unreadable"),
        "skipped, pack": resnet("train.pack", "val", "skipped_pack", *skips),
        "skipped, store": resnet("train.pack", "val", "skipped_store", *skips, "--store", "memory"),
        "part": (*resnet("train", "val_part", "part"), "--evaluate", *weights),
        "edsr unbroken": edsr("sr", "sr_val", "sr_unbroken"),
        "edsr validated": edsr("sr", "sr_val_cut", "sr_validated"),
        "edsr repaired": edsr("sr", "sr_val", "sr_validated", "--resume"),
        "edsr bad": edsr("sr_bad", "sr_val", "sr_named"),
        "edsr decoded": edsr("sr", "sr_val_cut", "sr_decoded", "--check-images"),
        "mesh met": mesh("mesh_cut.pack", "mesh_met"),
        "mesh store": mesh("mesh_cut.pack", "mesh_store", "--store", "memory"),
        "mesh grid": mesh("mesh_cut.pack", "mesh_grid", "--grid", "2x1", "--batch-size", 4),
    }


def refusal(runs: Runs, name: str) -> str:
    done = runs[name]
    program = "resnet.train" if "edsr" not in name and "mesh" not in name else f"{name[:4]}.train"
    (line,) = refusals(done, program)
    assert done.returncode == 2
    return line


def checkpoint(path: Path) -> dict[str, object]:
    held: dict[str, object] = torch.load(path, weights_only=True)
    return held


def test_all_images_are_looked_at_before_the_first_step(runs: Runs, folder: Path) -> None:
    line = refusal(runs, "headers")
    assert "2 of 17 images cannot be used: " in line
    for part in ("train", "val"):
        assert f"{folder / f'{part}_bad' / 'class0' / '1.png'} is not a readable image" in line
    assert not list(folder.glob("headers/*.pt"))


@pytest.mark.long
def test_all_images_are_decoded_or_those_of_edsr_looked_at(all_runs: Runs, folder: Path) -> None:
    assert "2 of 17 images cannot be used: " in refusal(all_runs, "decoded")
    assert "2 of 3 images cannot be used: " in refusal(all_runs, "edsr bad")
    assert "1 of 2 images cannot be used: " in refusal(all_runs, "edsr decoded")
    for output in ("decoded", "sr_named", "sr_decoded"):
        assert not list(folder.glob(f"{output}/*.pt"))


def test_an_image_that_cannot_be_read_ends_all_ranks_with_a_checkpoint(
    runs: Runs, folder: Path
) -> None:
    line = refusal(runs, "met")
    assert "error: rank 1: " in line
    assert "is not a readable image" in line
    assert line.endswith("all steps before it are in the checkpoint: repair it and resume")
    # The step was taken on no rank: as if it had been readable from the first step on.
    assert runs["met, repaired"].returncode == 0
    assert same(*(checkpoint(folder / name / "1.pt") for name in ("unbroken", "met")))


@pytest.mark.parametrize(
    ("name", "fixture"),
    [
        ("met", "runs"),
        *(pytest.param(name, "all_runs", marks=pytest.mark.long) for name in ("store", "grid")),
    ],
)
def test_a_damaged_sample_ends_all_ranks_with_a_checkpoint(
    request: pytest.FixtureRequest, folder: Path, name: str, fixture: str
) -> None:
    line = refusal(request.getfixturevalue(fixture), f"mesh {name}")
    assert "is damaged: its checksum differs" in line
    assert checkpoint(folder / f"mesh_{name}" / "checkpoint.pt")["step"] == 2


def test_an_epoch_is_not_lost_to_a_validation_that_fails(runs: Runs, folder: Path) -> None:
    assert "1.png is not a readable image" in refusal(runs, "validated")
    assert runs["validated, repaired"].returncode == 0
    assert "epoch 1: loss" in runs["validated, repaired"].stdout
    names = ("unbroken", "validated")
    assert same(*(checkpoint(folder / name / "1.pt") for name in names))
    assert same(*(checkpoint(folder / name / "best.pt") for name in names))
    logs = [read_log(folder / name) for name in names]
    assert [{**row, "img_per_s": ""} for row in logs[0]] == [
        {**row, "img_per_s": ""} for row in logs[1]
    ]


@pytest.mark.long
def test_a_validation_of_edsr_that_fails_loses_no_step(all_runs: Runs, folder: Path) -> None:
    assert "1.png is not a readable image" in refusal(all_runs, "edsr validated")
    assert all_runs["edsr repaired"].returncode == 0
    outputs = [folder / name for name in ("sr_unbroken", "sr_validated")]
    assert read_log(outputs[0], "validation.csv") == read_log(outputs[1], "validation.csv")
    for name in ("checkpoint.pt", "best.pt"):
        assert same(*(checkpoint(output / name) for output in outputs))


def test_unreadable_images_are_skipped_and_counted_on_request(runs: Runs, folder: Path) -> None:
    done = runs["skipped"]
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("replaced by the next: 1 of 12 images cannot be used: ") == 1
    with (folder / "skipped" / "log.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    # Four of five images are left to validate with.
    assert float(row["val_accuracy"]) * 4 == round(float(row["val_accuracy"]) * 4)


@pytest.mark.long
def test_they_are_skipped_in_a_packed_file_and_where_a_store_keeps_it(
    all_runs: Runs, folder: Path
) -> None:
    for name in ("pack", "store"):
        done = all_runs[f"skipped, {name}"]
        assert done.returncode == 0, done.stderr
        text = "replaced by the next: 1 of 12 images cannot be used: "
        assert done.stderr.count(text) == 2
    assert same(*(checkpoint(folder / f"skipped_{name}" / "2.pt") for name in ("pack", "store")))


def test_a_folder_without_one_class_is_evaluated_with_the_labels_of_the_checkpoint(
    runs: Runs, folder: Path
) -> None:
    assert runs["part"].returncode == 0, runs["part"].stderr
    found = json.loads((folder / "part.json").read_text())
    assert found["images"] == 2
    assert checkpoint(folder / "unbroken" / "1.pt")["classes"] == ["class0", "class1"]
