"""What EDSR is for: on photographs that it has not seen it beats bicubic, by any exchange alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edsr import photographs
from tests.support.training.trainer_runs import EXCHANGES, losses, read_log, same, train

STEPS = 1200
FLAGS = ["--scale", 2, "--blocks", 4, "--features", 32, "--patch", 24, "--batch-size", 8]
FLAGS += ["--lr", 1e-3, "--lr-decay-every", 500, "--ema", 0.99, "--steps", STEPS]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_it_beats_bicubic_by_a_decibel_with_both_exchanges(tmp_path: Path) -> None:
    photographs.main([str(tmp_path)])
    shown = ("--data", tmp_path / "train", "--validate", tmp_path / "test")
    runs = {exchange: tmp_path / exchange for exchange in EXCHANGES}
    for exchange, output in runs.items():
        flags = (*FLAGS, *shown, "--validate-every", STEPS, "--exchange", exchange)
        train(2, "edsr.train", *flags, "--output", output, timeout=400)
    stock, ours = runs.values()
    assert losses(ours) == losses(stock)
    trained = (torch.load(run / "checkpoint.pt", weights_only=True) for run in runs.values())
    assert same(*(state["ema"] for state in trained))
    figures = read_log(ours, "validation.csv")[-1]
    assert float(figures["psnr_db"]) >= float(figures["bicubic_db"]) + 1
