"""ResNet: timed, resumed, judged; it learns to read digits, the same with both exchanges."""

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

from hvd_ext.data.__main__ import main as pack
from resnet.folder import ClassFolder, centred, load_batches, normalised
from resnet.model import resnet18, resnet50
from tests.conftest import Launch
from tests.support.training.trainer_runs import (
    DDP,
    EXCHANGES,
    read_log,
    refusals,
    run_in_turn,
    run_ranks,
    same,
    train,
)

FLAGS = ("--model", "resnet18", "--image-size", 32, "--threads", 1)
RECIPE = ("--batch-size", 16, "--epochs", 2, "--warmup-epochs", 1, "--schedule", "cosine")
RECIPE = (*RECIPE, "--label-smoothing", 0.1, "--no-augmentation", "--keep", 1)
TIMED = (*EXCHANGES, *DDP, "none")
Runs = Mapping[str, "subprocess.CompletedProcess[str]"]


@pytest.mark.long
def test_digits_are_learnt_the_same_with_every_exchange(launch: Launch, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    digits = tmp_path / "digits"
    folders = ("--train-dir", digits / "train", "--val-dir", digits / "val")
    assert launch(1, ("-m", "resnet.digits", digits)).returncode == 0
    logs = []
    for exchange in ("horovod", "hvd_ext", "ddp+hvd_ext"):
        output = tmp_path / exchange
        paths = ("--log-dir", output, "--checkpoint-format", output / "{epoch}.pt")
        flags = (*FLAGS, *RECIPE, *folders, *paths, "--exchange", exchange)
        done = launch(2, ("-m", "resnet.train", *flags))
        assert done.returncode == 0, done.stdout
        assert "2 ranks, batch 32 of all, learning rate 0.00625, growing to 0.0125" in done.stdout
        with (output / "log.csv").open() as stream:
            logs.append([{**row, "img_per_s": ""} for row in csv.DictReader(stream)])
        assert sorted(path.name for path in output.glob("*.pt")) == ["2.pt", "best.pt"]
    assert logs[0] == logs[1] == logs[2]
    best = max(float(row["val_accuracy"]) for row in logs[0])
    assert best >= 0.95

    result = tmp_path / "result.json"
    judged = ("--evaluate", "--load", tmp_path / "hvd_ext" / "best.pt", "--json", result)
    done = launch(2, ("-m", "resnet.train", *FLAGS, *judged, "--val-dir", digits / "val"))
    assert done.returncode == 0, done.stdout
    assert json.loads(result.read_text())["accuracy"] == best
    assert f"accuracy {best:.2%}, top-5 " in done.stdout


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes; 9 images to learn from, and 5 to validate with."""
    root = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(0)
    for part, counts in (("train", (5, 4)), ("val", (3, 2))):
        for label, count in enumerate(counts):
            folder = root / part / f"class{label}"
            folder.mkdir(parents=True)
            for i in range(count):
                noise = rng.integers(0, 128, (40, 50, 3)) + 127 * label
                Image.fromarray(noise.astype(np.uint8)).save(folder / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the outputs of `runs`."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(folder: Path, classes: Path) -> Runs:
    """What the tests look at, in one job of two ranks."""
    timed = ("resnet.train", "--synthetic", "--model", "resnet18", "--batch-size", 1)
    timed = (*timed, "--image-size", 64, "--num-warmup-batches", 1, "--num-batches-per-iter", 1)
    timed = (*timed, "--num-iters", 2)
    (folder / "val" / "a").mkdir(parents=True)
    (folder / "val" / "a" / "1.png").touch()
    weights = ("--checkpoint-format", folder / "no-{epoch}.pt", "--val-dir", folder / "val")
    trained = ("--train-dir", classes / "train", "--val-dir", classes / "val", "--image-size", 64)
    trained = (*trained, "--model", "resnet18", "--epochs", 1, "--batch-size", 2)
    trained = (*trained, "--log-dir", folder)
    trained = (*trained, "--checkpoint-format", folder / "{epoch}.pt", "--exchange", "none")
    commands: dict[str, tuple[object, ...]] = {
        "one pixel": ("resnet.train", "--synthetic", *FLAGS, "--batch-size", 1),
        "no weights": ("resnet.train", *FLAGS, "--evaluate", *weights),
        "trained": ("resnet.train", *trained),
        "adasum": (*timed, "--exchange", "ddp", "--use-adasum"),
        "divided": (*timed, "--exchange", "ddp+hvd_ext", "--gradient-predivide-factor", 2),
    }
    for exchange in TIMED:
        result = ("--json", folder / f"{exchange}.json", "--exchange", exchange)
        commands[exchange] = (*timed, *result)
    return run_in_turn(2, folder, commands)


def test_a_batch_of_one_pixel_is_refused_once(runs: Runs) -> None:
    (line,) = refusals(runs["one pixel"], "resnet.train")
    assert "--batch-size 1 of --image-size 32: the last layers see one pixel" in line
    assert runs["one pixel"].returncode == 2


def test_what_ddp_cannot_do_is_refused_once(runs: Runs) -> None:
    for name, flag in (("adasum", "--use-adasum"), ("divided", "--gradient-predivide-factor 2")):
        (line,) = refusals(runs[name], "resnet.train")
        assert f"error: {flag}: DDP " in line
        assert runs[name].returncode == 2


def test_weights_that_do_not_fit_are_refused_once(runs: Runs) -> None:
    (line,) = refusals(runs["no weights"], "resnet.train")
    assert "--evaluate: no checkpoint at " in line
    assert line.endswith("name weights with --load")
    assert runs["no weights"].returncode == 2


@pytest.mark.parametrize("exchange", TIMED)
def test_resnet_is_timed_on_synthetic_data(runs: Runs, folder: Path, exchange: str) -> None:
    done = runs[exchange]
    assert done.returncode == 0, done.stderr
    assert "Img/sec per CPU: " in done.stdout
    assert "Total img/sec on 2 CPU(s): " in done.stdout
    result = json.loads((folder / f"{exchange}.json").read_text())
    assert result["images_per_second"] == pytest.approx(2 * result["images_per_second_per_rank"])


@pytest.mark.long
def test_resnet_resumes_within_an_epoch_and_counts_each_image_once(
    tmp_path: Path, classes: Path
) -> None:
    flags: tuple[object, ...] = ("resnet.train", "--train-dir", classes / "train")
    flags = (*flags, "--val-dir", classes / "val", "--image-size", 64, "--epochs", 1)
    flags = (*flags, "--batch-size", 1, "--batches-per-allreduce", 2, "--checkpoint-every", 1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    assert pack(["pack", str(classes / "val"), "-o", str(tmp_path / "val.pack")]) == 0
    packed = ("--val-dir", tmp_path / "val.pack", "--prefetch", 0)
    train(2, *flags, "--log-dir", whole, "--checkpoint-format", whole / "{epoch}.pt", *packed)
    # Step 1 of 3, then a death: its checkpoint is kept from the next one.
    stopped = broken / "1.pt"
    script = (
        "import sys\n"
        "from resnet.train import main\n"
        "from training.run import Run\n"
        "save = Run.save\n"
        "def once(self, *args, **more):\n"
        "    save(self, *args, **more)\n"
        "    sys.exit(0)\n"
        "Run.save = once\n"
        "main(sys.argv[1:])\n"
    )
    broken_flags = (*flags[1:], "--log-dir", broken, "--checkpoint-format", broken / "{epoch}.pt")
    done = run_ranks(2, "-c", script, *broken_flags, "--threads", 1)
    assert done.returncode == 0, done.stderr
    state = torch.load(stopped)
    assert (state["epoch"], state["step"], state["order"]["position"]) == (0, 1, 4)
    # On another number of ranks it goes on where it was: 4, 6, 8, and 10 of 9 images.
    fewer = shutil.copytree(broken, tmp_path / "fewer")
    paths = ("--log-dir", fewer, "--checkpoint-format", fewer / "{epoch}.pt")
    train(1, *flags, *paths)
    alone = torch.load(fewer / "1.pt")
    assert (alone["epoch"], alone["step"], alone["order"]["position"]) == (1, 0, 10)
    train(2, "resnet.train", *broken_flags)

    final = torch.load(whole / "1.pt")
    assert final["order"]["position"] == 12  # the batch that ended the epoch began the next
    assert same(final, torch.load(stopped))
    row = read_log(whole)[0]
    mine = read_log(broken)[0]
    assert {**row, "img_per_s": ""} == {**mine, "img_per_s": ""}
    # That of its last step, in the middle of the warm-up: from 0.0125 / 32 to 4 times that.
    epochs = 8 / 9
    assert float(row["lr"]) == pytest.approx(0.0125 / 32 * (1 + 3 * epochs / 5))
    assert row["val_top5"] == "1.0"
    assert same(torch.load(whole / "best.pt"), final)

    # From the ranks' memory it learns the same.
    assert pack(["pack", str(classes / "train"), "-o", str(tmp_path / "train.pack")]) == 0
    kept = ("--train-dir", tmp_path / "train.pack", "--store", "memory", "--stage-to", tmp_path)
    log = tmp_path / "kept"
    train(2, *flags, *kept, "--log-dir", log, "--checkpoint-format", log / "{epoch}.pt")
    assert {**row, "img_per_s": ""} == {**read_log(log)[0], "img_per_s": ""}

    model = resnet50(2).eval()
    model.load_state_dict(final["model"])
    held_out = ClassFolder.read(classes / "val")
    images, labels = next(load_batches([range(5)], lambda i: centred(held_out[i], 64), workers=1))
    with torch.inference_mode():
        loss = torch.nn.functional.cross_entropy(model(normalised(images)), labels)
    assert float(row["val_loss"]) == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.long
def test_resnet_names_an_image_that_is_none(tmp_path: Path, classes: Path) -> None:
    bad = tmp_path / "train"
    for label in range(2):
        (bad / f"class{label}").mkdir(parents=True)
        for i in range(2):
            (bad / f"class{label}" / f"{i}.png").write_text("no image")
    flags = ("--train-dir", bad, "--val-dir", classes / "val", "--log-dir", tmp_path / "logs")
    flags = (*flags, "--checkpoint-format", tmp_path / "{epoch}.pt", "--image-size", 64)
    done = run_ranks(2, "-m", "resnet.train", *flags, "--batch-size", 2)
    assert done.returncode == 2
    assert all("is not a readable image" in line for line in refusals(done, "resnet.train"))
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.pt"))


def test_an_epoch_leaves_a_row_a_checkpoint_and_the_best(runs: Runs, folder: Path) -> None:
    (row,) = read_log(folder)
    trained, found = (
        [f"{when}_{name}" for name in ("loss", "accuracy", "top5")] for when in ("train", "val")
    )
    assert list(row) == ["epoch", *trained, *found, "lr", "img_per_s"]
    last, best = torch.load(folder / "1.pt"), torch.load(folder / "best.pt")
    assert same(last, best)
    assert (last["epoch"], last["step"], last["best"]) == (1, 0, float(row["val_accuracy"]))
    assert not last["sums"].any()
    shown = f"epoch 1: loss {float(row['train_loss']):.4f}, accuracy "
    assert shown in runs["trained"].stdout


def test_resnet_without_an_exchange_validates_rank_0s_weights_on_rank_0s_images(
    runs: Runs, folder: Path, classes: Path
) -> None:
    assert runs["trained"].returncode == 0, runs["trained"].stderr
    model = resnet18(2).eval()
    model.load_state_dict(torch.load(folder / "1.pt")["model"])
    held_out = ClassFolder.read(classes / "val")
    images, labels = next(
        load_batches([range(0, 5, 2)], lambda i: centred(held_out[i], 64), workers=1)
    )
    with torch.inference_mode():
        loss = torch.nn.functional.cross_entropy(model(normalised(images)), labels)
    assert float(read_log(folder)[0]["val_loss"]) == pytest.approx(loss.item(), rel=1e-4)
