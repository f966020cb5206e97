"""The bundled trainers, launched as a user launches them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edsr.data import synthetic_image
from edsr.evaluate import judge
from edsr.images import load_rgb, shrink
from edsr.weights import load_model
from hvd_ext.data.__main__ import main as pack
from tests.support.launch.launching import WITHOUT_HOROVOD
from tests.support.training.trainer_runs import (
    DDP,
    EXCHANGES,
    losses,
    read_log,
    refusals,
    run_in_turn,
    run_ranks,
    same,
    train,
)

SMALL = ("--blocks", 2, "--features", 8, "--patch", 12, "--log-every", 1)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for i in range(3):
        Image.fromarray(synthetic_image(7, i, 64 + i)).save(folder / f"{i}.png")
    return folder


Runs = Mapping[str, "subprocess.CompletedProcess[str]"]

EXCHANGED = ("edsr.train", "--synthetic", *SMALL, "--steps", 8, "--batch-size", 2)
# A norm that every gradient exceeds.
EXCHANGED = (*EXCHANGED, "--batches-per-allreduce", 2, "--clip", 1e-3, "--ema", 0.9)
RESUMED = ("edsr.train", *SMALL, "--batch-size", 2, "--lr-decay-every", 3, "--ema", 0.9)
RESUMED = (*RESUMED, "--keep", 2, "--checkpoint-every", 3, "--validate-every", 5)
BAD = {
    ("--scale", 5): "scale 5 is not 2, 3 or 4",
    ("--patch", "many"): "'many' is not a whole number >= 1",
    ("--patch", 40): "smaller than 80x80: leave it out",
    ("--load", "OTHER"): "is a checkpoint of 'resnet', not of 'edsr'",
    ("--data", "CUT"): "is not a readable image",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the outputs of `runs`."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(folder: Path, photographs: Path) -> Runs:
    """What the tests look at, in one job of two ranks."""
    packed, cut, other = (folder / name for name in ("a.pack", "cut", "other.pt"))
    assert pack(["pack", str(photographs), "-o", str(packed)]) == 0
    cut.mkdir()
    (cut / "a.png").write_bytes((photographs / "0.png").read_bytes()[:2000])
    torch.save({"kind": "resnet"}, other)
    commands: dict[str, tuple[object, ...]] = {}
    for exchange in (*EXCHANGES, *DDP):
        flags = ("--validate", photographs, "--exchange", exchange, "--output", folder / exchange)
        commands[exchange] = (*EXCHANGED, *flags)
    commands["other flags"] = (*commands["hvd_ext"], "--resume", "--lr", "1e-3", "--channels-last")
    begun = (*EXCHANGED, "--validate", photographs, "--output", folder / "begun")
    commands["begun"] = (*begun, "--steps", 5, "--exchange", "ddp")
    commands["ended"] = (*begun, "--resume", "--exchange", "ddp+hvd_ext")
    commands["int8"] = (*EXCHANGED, "--exchange", "ddp", "--compression", "int8")
    commands["int8"] = (*commands["int8"], "--output", folder / "int8")
    flags = ("--data", photographs, "--validate", photographs, "--steps", 8)
    commands["whole"] = (*RESUMED, *flags, "--output", folder / "whole")
    flags = ("--data", packed, "--validate", packed, "--steps", 5, "--prefetch", 0)
    commands["broken"] = (*RESUMED, *flags, "--output", folder / "broken")
    # It logged steps 6 and 7, which are taken again from the checkpoint of step 5.
    ahead = ("6,0.5,0.1,0.2,1.0", "7,0.5,0.1,0.2,1.0")
    ahead = ("tests.programs.training.logs_ahead", folder / "broken" / "log.csv", *ahead)
    flags = ("--data", photographs, "--validate", photographs, "--steps", 8, "--resume")
    commands["logged ahead"] = ahead
    commands["resumed"] = (*RESUMED, *flags, "--output", folder / "broken")
    paths = {"OTHER": other, "CUT": cut}
    for words in BAD:
        flags = ("--data", photographs, *SMALL, "--output", folder / "none")
        flags = (*flags, *(paths.get(str(word), word) for word in words))
        commands[str(words)] = ("edsr.train", *flags)
    (folder / "used").mkdir()
    (folder / "used" / "checkpoint.pt").write_text("precious")
    commands["used"] = ("edsr.train", "--synthetic", "--output", folder / "used")
    commands["wrong on rank 1"] = ("tests.programs.training.wrong_on_rank_1",)
    return run_in_turn(2, folder, commands)


def test_all_exchanges_give_the_same_bits(runs: Runs, folder: Path, photographs: Path) -> None:
    exchanges = (*EXCHANGES, *DDP)
    assert [runs[exchange].stderr for exchange in exchanges if runs[exchange].returncode] == []
    assert len(losses(folder / "horovod")) == 8
    states = [torch.load(folder / exchange / "checkpoint.pt") for exchange in exchanges]
    for exchange, state in zip(exchanges, states, strict=True):
        assert losses(folder / exchange) == losses(folder / "horovod"), exchange
        for held in ("model", "ema", "optimizer"):
            assert same(state[held], states[0][held]), (exchange, held)
    assert not same(states[0]["model"], states[0]["ema"])
    # What is evaluated, and was validated, is the average.
    model = load_model(folder / "horovod" / "checkpoint.pt")
    figures = []
    for path in sorted(photographs.iterdir()):
        low, high = shrink(load_rgb(path), 2, "matlab")
        figures.append(judge(model, high, low)[0]["edsr_rgb_db"])
    (row,) = read_log(folder / "hvd_ext", "validation.csv")
    assert row["step"] == "8"
    assert float(row["psnr_db"]) == pytest.approx(np.mean(figures), abs=1e-3)
    assert same(torch.load(folder / "horovod" / "best.pt"), states[0])
    summary = json.loads((folder / "hvd_ext" / "summary.json").read_text())
    assert (summary["exchange"], summary["size"]) == ("hvd_ext", 2)
    assert repr(summary["loss"]) == losses(folder / "hvd_ext")[-1]


def test_a_run_with_ddp_resumes_with_hvd_ext_attached_to_it(runs: Runs, folder: Path) -> None:
    assert (runs["begun"].returncode, runs["ended"].returncode) == (0, 0), runs["ended"].stderr
    assert losses(folder / "begun") == losses(folder / "ddp")
    states = [torch.load(folder / name / "checkpoint.pt") for name in ("begun", "ddp")]
    assert all(same(*(state[held] for state in states)) for held in ("model", "ema", "optimizer"))


def test_ddp_refuses_a_format_that_it_does_not_have(runs: Runs) -> None:
    (line,) = refusals(runs["int8"], "edsr.train")
    assert "--compression int8: --exchange ddp has only none, fp16" in line
    assert runs["int8"].returncode == 2


@pytest.mark.long
def test_horovods_exchange_without_horovod_is_refused_in_one_line(tmp_path: Path) -> None:
    flags = ("--synthetic", "--exchange", "horovod")
    output = ("--output", tmp_path / "none")
    commands = {"resnet.train": ("resnet.train", *flags)}
    for name in ("edsr.train", "mesh.train", "cosmoflow.train"):
        commands[name] = (name, *flags, *output)
    found = run_in_turn(2, tmp_path, commands, WITHOUT_HOROVOD)
    for name, done in found.items():
        (line,) = done.stderr.splitlines()
        said = f"{name}: error: --exchange horovod: Horovod is not installed for "
        assert line.startswith(said), line
        assert done.returncode == 2
    assert not (tmp_path / "none").exists()


def test_a_resumed_run_has_the_bits_of_an_unbroken_one(runs: Runs, folder: Path) -> None:
    for name in ("whole", "broken", "logged ahead", "resumed"):
        assert runs[name].returncode == 0, runs[name].stderr
    whole, broken = folder / "whole", folder / "broken"
    assert losses(whole) == losses(broken)
    validated = [read_log(of, "validation.csv") for of in (whole, broken)]
    assert validated[0] == validated[1]
    assert [row["step"] for row in validated[0]] == ["5", "8"]
    kept = ["best.pt", "checkpoint-6.pt", "checkpoint-8.pt", "checkpoint.pt"]
    for name in kept:
        assert same(*(torch.load(of / name) for of in (whole, broken))), name
    assert sorted(path.name for path in broken.glob("*.pt")) == kept
    checkpoints = [torch.load(of / "checkpoint.pt") for of in (whole, broken)]
    best = max(validated[0], key=lambda row: float(row["psnr_db"]))
    assert torch.load(whole / "best.pt")["step"] == int(best["step"])
    assert checkpoints[0]["best"] == float(best["psnr_db"])
    assert checkpoints[0]["optimizer"]["state"][0]["step"] == 8


@pytest.mark.long
def test_without_an_exchange_a_rank_trains_as_if_it_were_alone(
    tmp_path: Path, photographs: Path
) -> None:
    flags = ("edsr.train", "--data", photographs, *SMALL, "--batch-size", 2, "--steps", 1)
    alone, beside, averaged = (tmp_path / name for name in ("alone", "beside", "averaged"))
    train(1, *flags, "--exchange", "horovod", "--output", alone)
    train(2, *flags, "--exchange", "none", "--output", beside)
    train(2, *flags, "--exchange", "horovod", "--output", averaged)
    assert losses(beside) == losses(alone) != losses(averaged)
    one, two, both = (torch.load(f / "checkpoint.pt")["model"] for f in (alone, beside, averaged))
    assert same(one, two)
    assert not same(one, both)


@pytest.mark.long
def test_without_an_exchange_a_run_resumes_to_the_bit(tmp_path: Path, photographs: Path) -> None:
    flags = ("edsr.train", "--data", photographs, *SMALL, "--batch-size", 2, "--exchange", "none")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(2, *flags, "--steps", 4, "--output", whole)
    train(2, *flags, "--steps", 2, "--output", broken)
    train(2, *flags, "--steps", 4, "--output", broken, "--resume")
    assert losses(whole) == losses(broken)
    assert same(*(torch.load(folder / "checkpoint.pt") for folder in (whole, broken)))


def test_a_run_is_not_resumed_with_other_flags(runs: Runs, folder: Path) -> None:
    (line,) = refusals(runs["other flags"], "edsr.train")
    assert "--channels-last was not given, now given; --lr was 0.0001, now 0.001" in line
    assert runs["other flags"].returncode == 2
    # As it was written, and once more as the best.
    kept = (torch.load(folder / "hvd_ext" / name) for name in ("checkpoint.pt", "best.pt"))
    assert same(*kept)


@pytest.mark.long
def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    flags = ("edsr.train", "--synthetic", *SMALL, "--batch-size", 2, "--output", tmp_path)
    # A rate at which the weights overflow within some steps.
    done = run_ranks(2, "-m", *flags, "--steps", 50, "--lr", "1e12", "--checkpoint-every", 1)
    assert done.returncode != 0
    told = refusals(done, "edsr.train")
    assert told
    assert all("not finite" in line or "is nan" in line or "is inf" in line for line in told)
    assert "Traceback" not in done.stderr
    kept = torch.load(tmp_path / "checkpoint.pt")
    assert 0 < kept["step"] < 50
    assert all(weight.isfinite().all() for weight in kept["model"].values())
    assert f"the loss of step {kept['step'] + 1} is" in told[0] or "not finite" in told[0]


@pytest.mark.long
def test_the_number_of_ranks_does_not_change_what_is_learnt(
    tmp_path: Path, photographs: Path
) -> None:
    flags = ("edsr.train", "--data", photographs, *SMALL, "--steps", 4, "--exchange", "horovod")
    flags = (*flags, "--clip", 10)
    train(1, *flags, "--batch-size", 6, "--output", tmp_path / "one")
    train(3, *flags, "--batch-size", 2, "--output", tmp_path / "three")
    parts = ("--batch-size", 2, "--batches-per-allreduce", 3)
    train(1, *flags, *parts, "--output", tmp_path / "parts")
    found = [[float(loss) for loss in losses(tmp_path / n)] for n in ("one", "three", "parts")]
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[2] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.skipif(
    "HVD_EXT_TEST_SWEEP" not in os.environ, reason="set HVD_EXT_TEST_SWEEP=1, as make sweep does"
)
def test_scale_three_starts_from_scale_two(tmp_path: Path, photographs: Path) -> None:
    flags = ("edsr.train", "--data", photographs, *SMALL, "--batch-size", 2, "--steps", 1)
    train(1, *flags, "--output", tmp_path / "x2")
    start = tmp_path / "x2" / "checkpoint.pt"
    # A rate this small leaves the weights as they were loaded, to rounding.
    flags = (*flags, "--scale", 3, "--lr", 1e-20, "--load", start)
    train(2, *flags, "--output", tmp_path / "x3")
    two, three = (torch.load(tmp_path / x / "checkpoint.pt")["model"] for x in ("x2", "x3"))
    assert two["tail.0.0.weight"].shape != three["tail.0.0.weight"].shape
    assert all(two[key].equal(three[key]) for key in two if not key.startswith("tail"))


@pytest.mark.parametrize("flags", BAD, ids=str)
def test_bad_input_is_refused_once_by_all(
    runs: Runs, folder: Path, flags: tuple[object, ...]
) -> None:
    done = runs[str(flags)]
    lines = refusals(done, "edsr.train")
    assert len(lines) == 1, done.stderr
    assert BAD[flags] in lines[0]
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (folder / "none").exists()


def test_an_error_of_one_rank_alone_ends_all(runs: Runs) -> None:
    done = runs["wrong on rank 1"]
    assert refusals(done, "program") == ["program: error: rank 1: no such disk"]
    assert done.returncode == 2
    assert "went on" not in done.stdout


def test_a_used_output_folder_is_not_overwritten(runs: Runs, folder: Path) -> None:
    done = runs["used"]
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "add --resume to resume it" in line
    assert [path.name for path in (folder / "used").iterdir()] == ["checkpoint.pt"]
    assert (folder / "used" / "checkpoint.pt").read_text() == "precious"
