"""Trainers in bfloat16 and with channels last: on a CPU too, though it gains nothing there."""

from __future__ import annotations

import json

import pytest

from tests.support.training.trainer_runs import run_in_turn

SHORT = ("--bf16", "--channels-last")


@pytest.mark.long
def test_edsr_learns_alike_and_resnet_says_how_it_was_timed(tmp_path):
    edsr = ("edsr.train", "--synthetic", "--blocks", 2, "--features", 8, "--patch", 12)
    edsr = (*edsr, "--batch-size", 4, "--steps", 4, "--output")
    resnet = ("resnet.train", "--synthetic", "--model", "resnet18", "--batch-size", 2)
    resnet = (*resnet, "--image-size", 64, "--num-warmup-batches", 0, "--num-iters", 2)
    commands = {
        "plain": (*edsr, tmp_path / "plain"),
        "short": (*edsr, tmp_path / "short", *SHORT),
        "resnet": (*resnet, "--num-batches-per-iter", 1, "--json", tmp_path / "r.json", *SHORT),
    }
    for done in run_in_turn(2, tmp_path, commands).values():
        assert done.returncode == 0, done.stderr
    plain, short = (
        json.loads((tmp_path / name / "summary.json").read_text())["loss"]
        for name in ("plain", "short")
    )
    assert plain != short
    assert abs(plain - short) < 0.02 * plain
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["bf16"] is True
    assert result["channels_last"] is True
