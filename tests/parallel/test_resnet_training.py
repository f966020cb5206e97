"""ResNet learns to read digits, the same with both exchanges, and is judged afterwards."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.conftest import Launch

FLAGS = ("--model", "resnet18", "--image-size", 32, "--threads", 1)
RECIPE = ("--batch-size", 16, "--epochs", 2, "--warmup-epochs", 1, "--schedule", "cosine")
RECIPE = (*RECIPE, "--label-smoothing", 0.1, "--no-augmentation", "--keep", 1)


def test_digits_are_learnt_the_same_with_both_exchanges(launch: Launch, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    digits = tmp_path / "digits"
    folders = ("--train-dir", digits / "train", "--val-dir", digits / "val")
    assert launch(1, ("-m", "resnet.digits", digits)).returncode == 0
    logs = []
    for exchange in ("horovod", "hvd_ext"):
        output = tmp_path / exchange
        paths = ("--log-dir", output, "--checkpoint-format", output / "{epoch}.pt")
        flags = (*FLAGS, *RECIPE, *folders, *paths, "--exchange", exchange)
        done = launch(2, ("-m", "resnet.train", *flags))
        assert done.returncode == 0, done.stdout
        assert "2 ranks, batch 32 of all, learning rate 0.00625, growing to 0.0125" in done.stdout
        with (output / "log.csv").open() as stream:
            logs.append([{**row, "img_per_s": ""} for row in csv.DictReader(stream)])
        assert sorted(path.name for path in output.glob("*.pt")) == ["2.pt", "best.pt"]
    assert logs[0] == logs[1]
    best = max(float(row["val_accuracy"]) for row in logs[0])
    assert best >= 0.95

    result = tmp_path / "result.json"
    judged = ("--evaluate", "--load", tmp_path / "hvd_ext" / "best.pt", "--json", result)
    done = launch(2, ("-m", "resnet.train", *FLAGS, *judged, "--val-dir", digits / "val"))
    assert done.returncode == 0, done.stdout
    assert json.loads(result.read_text())["accuracy"] == best
    assert f"accuracy {best:.2%}, top-5 " in done.stdout


def test_a_batch_of_one_pixel_is_refused_once(launch: Launch) -> None:
    done = launch(2, ("-m", "resnet.train", "--synthetic", *FLAGS, "--batch-size", 1))
    (line,) = (line for line in done.stdout.splitlines() if "resnet.train: error: " in line)
    assert "--batch-size 1 of --image-size 32: the last layers see one pixel" in line
    assert done.returncode == 2


def test_weights_that_do_not_fit_are_refused_once(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "val" / "a").mkdir(parents=True)
    (tmp_path / "val" / "a" / "1.png").touch()
    flags = ("-m", "resnet.train", *FLAGS, "--evaluate", "--val-dir", tmp_path / "val")
    done = launch(2, (*flags, "--checkpoint-format", tmp_path / "{epoch}.pt"))
    (line,) = (line for line in done.stdout.splitlines() if "resnet.train: error: " in line)
    assert "--evaluate: no checkpoint at " in line
    assert line.endswith("name weights with --load")
    assert done.returncode == 2
