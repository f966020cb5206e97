"""Trainers in bfloat16 and with channels last: on a CPU too, though it gains nothing there."""

from __future__ import annotations

import json

FLAGS = ("--bf16", "--channels-last", "--threads", 1)


def test_edsr_learns_alike(launch, tmp_path):
    losses = []
    for name, flags in (("plain", ("--threads", 1)), ("short", FLAGS)):
        common = ["-m", "edsr.train", "--synthetic", "--blocks", 2, "--features", 8]
        sizes = ["--patch", 12, "--batch-size", 4, "--steps", 4, "--output", tmp_path / name]
        done = launch(2, [*common, *sizes, *flags])
        assert done.returncode == 0, done.stdout
        losses.append(json.loads((tmp_path / name / "summary.json").read_text())["loss"])
    plain, short = losses
    assert plain != short
    assert abs(plain - short) < 0.02 * plain


def test_resnet_says_how_it_was_timed(launch, tmp_path):
    path = tmp_path / "r.json"
    common = ["-m", "resnet.train", "--synthetic", "--batch-size", 2, "--image-size", 64]
    sizes = ["--num-warmup-batches", 0, "--num-batches-per-iter", 1, "--num-iters", 2]
    done = launch(1, [*common, *sizes, "--json", path, *FLAGS])
    assert done.returncode == 0, done.stdout
    result = json.loads(path.read_text())
    assert result["bf16"] is True
    assert result["channels_last"] is True
