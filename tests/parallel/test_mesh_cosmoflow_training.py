"""The mesh and CosmoFlow trainers, launched as a user launches them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import hvprof
from cosmoflow.data import Universes
from hvd_ext.data.__main__ import main as pack
from mesh.data import Meshes
from tests.conftest import Launch

MESH = ("-m", "mesh.train", "--synthetic", "--size", 32, "--samples", 12, "--held-out", 2)
MESH = (*MESH, "--batch-size", 2, "--log-every", 1, "--threads", 1)
FROM_FILES = ("-m", "mesh.train", "--held-out", 1, "--log-every", 1, "--threads", 1, "--steps", 5)
COSMOFLOW = ("-m", "cosmoflow.train", "--thin", 8, "--held-out", 1, "--log-every", 1)
# Of the four cubes two epochs and a half.
COSMOFLOW = (*COSMOFLOW, "--threads", 1, "--steps", 5)


def train(launch: Launch, size: int, *command: object) -> str:
    done = launch(size, command)
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


def rows(folder: Path, name: str = "log.csv") -> list[dict[str, float]]:
    with (folder / name).open() as stream:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(stream)]


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in rows(folder)]


def test_a_grid_learns_what_one_rank_learns_and_resumes_to_the_bit(
    launch: Launch, tmp_path: Path
) -> None:
    one, whole, broken = (tmp_path / name for name in ("one", "whole", "broken"))
    train(launch, 1, *MESH, "--steps", 4, "--output", one)
    grid = ("--grid", "1x2")
    out = train(launch, 2, *MESH, *grid, "--steps", 4, "--output", whole)
    assert "1x2 a sample: loss " in out
    assert len(losses(whole)) == 4
    assert losses(whole) == pytest.approx(losses(one), rel=1e-3)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, whole)]
    for figure in ("held_out_loss", "accuracy", "precision", "recall", "iou"):
        figures = [summary[figure] for summary in summaries]
        assert figures[1] == pytest.approx(figures[0], rel=1e-3)
        assert 0 < figures[1] < 1, figure

    train(launch, 2, *MESH, *grid, "--steps", 2, "--output", broken)
    train(launch, 2, *MESH, *grid, "--steps", 4, "--output", broken, "--resume")
    assert losses(broken) == losses(whole)
    states = [torch.load(folder / "checkpoint.pt") for folder in (whole, broken)]
    assert states[0]["step"] == states[1]["step"] == 4
    assert all(states[0]["model"][key].equal(states[1]["model"][key]) for key in states[0]["model"])


def test_each_epoch_is_validated_and_the_rate_grows_in_the_first(
    launch: Launch, tmp_path: Path
) -> None:
    flags = ("-m", "cosmoflow.train", "--synthetic", "particles", "--log1p", "--thin", 16)
    flags = (*flags, "--width", 32, "--samples", 24, "--held-out", 3, "--threads", 1)
    rate = ("--lr", 1e-3, "--lr-batch", 4, "--lr-scaling", "sqrt", "--warmup-epochs", 1)
    out = train(launch, 2, *flags, *rate, "--steps", 9, "--log-every", 4, "--output", tmp_path)
    # A universe is 8 cubes: all of the last one are held out.
    assert "16 samples to learn from, 8 held out; 2 a step, learning rate 0.000707" in out
    found = rows(tmp_path)
    assert [row["step"] for row in found] == [4, 8, 9]
    assert [row["epoch"] for row in found] == [0.5, 1, 1.125]
    assert [row["lr"] for row in found] == pytest.approx([0.5**1.5 * 1e-3, *[0.5**0.5 * 1e-3] * 2])
    judged = rows(tmp_path, "validation.csv")
    assert [row["step"] for row in judged] == [8, 9]
    assert 0 < judged[0]["mae"] < 1
    assert judged[0]["mae"] != judged[1]["mae"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["mae"] == judged[1]["mae"]
    assert f"held out loss {judged[0]['held_out_loss']:.4f}, mae {judged[0]['mae']:.4f}" in out
    best = min(judged, key=lambda row: row["held_out_loss"])
    assert torch.load(tmp_path / "best.pt")["step"] == best["step"]


def test_ranks_that_share_filters_go_on_from_what_one_rank_did(
    launch: Launch, tmp_path: Path
) -> None:
    """Adam's state is whole in the checkpoint, and each rank takes its filters' part of it."""
    flags = ("--synthetic", "--width", 32, "--samples", 5)
    one, two = tmp_path / "one", tmp_path / "two"
    train(launch, 1, *COSMOFLOW, *flags, "--steps", 2, "--output", one)
    shutil.copytree(one, two)
    train(launch, 1, *COSMOFLOW, *flags, "--steps", 4, "--output", one, "--resume")
    shared = ("--gather-before", "features.11", "--split-filters", "features.11", "head")
    shared = (*shared, "--grid", "2x1x1", "--steps", 4, "--resume", "--output", two)
    train(launch, 2, *COSMOFLOW, *flags, *shared)
    assert losses(two) == pytest.approx(losses(one), rel=1e-3)
    states = [torch.load(folder / "checkpoint.pt") for folder in (one, two)]
    for name, weight in states[0]["model"].items():
        torch.testing.assert_close(states[1]["model"][name], weight, rtol=1e-3, atol=1e-4)
    moments = [state["optimizer"]["state"] for state in states]
    for number, held in moments[0].items():
        assert moments[1][number]["step"] == held["step"] == 4
        torch.testing.assert_close(
            moments[1][number]["exp_avg"], held["exp_avg"], rtol=1e-2, atol=1e-4
        )


def test_hvprof_sees_the_steps_and_what_they_are_made_of(launch: Launch, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    record = ("-m", "hvprof", "record", "-o", recording, "--", sys.executable)
    train(launch, 1, *record, *MESH, "--steps", 3, "--output", tmp_path / "run")
    (rank,) = hvprof.load(recording).ranks
    calls = {region.name: region.calls for region in rank.regions}
    assert rank.step_count == 3
    assert [calls[name] for name in ("forward", "backward", "update")] == [3, 3, 3]
    assert calls["load"] == 3 + 2  # the samples held out are read too
    assert calls["checkpoint"] == 2  # the last, and the best


@pytest.mark.long
def test_cubes_from_files_in_groups_of_two_ranks(launch: Launch, tmp_path: Path) -> None:
    universes = Universes(5, 32, seed=1)
    np.save(tmp_path / "cubes.npy", universes.cubes[(slice(None),) * 5])
    np.save(tmp_path / "labels.npy", universes.labels[:, :])
    files, made, kept, fewer = (tmp_path / name for name in ("files", "made", "kept", "fewer"))
    train(launch, 4, *COSMOFLOW, "--data", tmp_path, "--grid", "2x1x1", "--output", files)
    assert pack(["pack", str(tmp_path), "-o", str(tmp_path / "cubes.pack")]) == 0
    flags = ("--data", tmp_path / "cubes.pack", "--store", "memory", "--output")
    out = train(launch, 4, *COSMOFLOW, "--grid", "2x1x1", *flags, kept)
    assert "cosmoflow.train: 100% of " in out
    assert losses(kept) == losses(files)
    train(launch, 2, *COSMOFLOW, "--prefetch", 0, *flags, fewer)
    synthetic = ("--synthetic", "--width", 32, "--samples", 5, "--batch-size", 1)
    train(launch, 2, *COSMOFLOW, *synthetic, "--output", made)
    # Both take the samples in the same order, two at a time.
    assert len(losses(files)) == 5
    assert losses(files) == pytest.approx(losses(made), rel=1e-3)
    assert losses(files) == pytest.approx(losses(fewer), rel=1e-3)


@pytest.mark.long
def test_meshes_from_files_packs_and_stores(launch: Launch, tmp_path: Path) -> None:
    meshes = Meshes(5, 32, seed=1)
    np.save(tmp_path / "inputs.npy", meshes.inputs[(slice(None),) * 4])
    np.save(tmp_path / "masks.npy", meshes.masks[(slice(None),) * 4])
    train(launch, 2, *FROM_FILES, "--data", tmp_path, "--output", tmp_path / "files")
    packed = tmp_path / "meshes.pack"
    assert pack(["pack", str(tmp_path), "-o", str(packed)]) == 0
    staged = ("--stage-to", tmp_path / "disk", "--share-staging")
    for size, data, flags in (
        # Half a sample of 76 KB a rank fits: what does not is read again.
        (2, tmp_path, ("--store", "80KB")),
        (2, packed, staged),
        (4, packed, ("--store", "memory", "--grid", "2x1")),
    ):
        output = tmp_path / f"{size} {data.name}"
        train(launch, size, *FROM_FILES, "--data", data, *flags, "--output", output)
        other = 0 if size == 2 else 5e-3  # a grid adds up in another order
        assert losses(output) == pytest.approx(losses(tmp_path / "files"), rel=other)
    (copy,) = (tmp_path / "disk").glob("*.pack")
    assert copy.read_bytes() == packed.read_bytes()


@pytest.mark.skipif(
    "HVD_EXT_TEST_SWEEP" not in os.environ, reason="set HVD_EXT_TEST_SWEEP=1, as make sweep does"
)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("program", ["cosmoflow", "mesh"])
def test_files_packs_and_stores_give_the_same_losses_at_any_scale(
    launch: Launch, tmp_path: Path, program: str, size: int
) -> None:
    command = COSMOFLOW if program == "cosmoflow" else FROM_FILES
    samples = Universes(5, 32, seed=1) if program == "cosmoflow" else Meshes(5, 32, seed=1)
    for name, source in vars(samples).items():
        if hasattr(source, "shape"):
            np.save(tmp_path / f"{name}.npy", source[tuple(slice(None) for _ in source.shape)])
    packed = tmp_path / "all.pack"
    assert pack(["pack", str(tmp_path), "-o", str(packed)]) == 0
    found = []
    for data, flags in ((tmp_path, ()), (packed, ()), (packed, ("--store", "memory"))):
        output = tmp_path / f"{len(found)}"
        train(launch, size, *command, "--data", data, *flags, "--output", output)
        found.append(losses(output))
    assert len(found[0]) == 5
    assert found[1] == found[2] == found[0]


def test_what_does_not_fit_is_said_in_one_line(launch: Launch, tmp_path: Path) -> None:
    program = tmp_path / "limited.py"
    program.write_text(
        "import resource, runpy, sys\n"
        "import torch\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_module('mesh.train', run_name='__main__', alter_sys=True)\n"
    )
    sizes = ("--size", 1024, "--batch-size", 16, "--steps", 1, "--output", tmp_path / "none")
    done = launch(2, (program, *MESH[1:], *sizes))
    errors = [line for line in done.stdout.splitlines() if "mesh.train: error: " in line]
    assert errors, done.stdout
    assert "does not fit in memory: " in errors[0]
    assert "share a sample among more ranks (--grid), or lower --batch-size" in errors[0]
    assert done.returncode == 1
    assert "Traceback" not in done.stdout


def test_a_gpu_that_is_not_there_is_refused(launch: Launch, tmp_path: Path) -> None:
    output = ("--steps", 1, "--output", tmp_path / "none")
    done = launch(2, (*MESH, *output, "--device", "cuda"), env={"CUDA_VISIBLE_DEVICES": ""})
    errors = [line for line in done.stdout.splitlines() if "mesh.train: error: " in line]
    assert len(errors) == 1, done.stdout
    assert "--device cuda: torch " in errors[0]
    assert "finds no GPU: give --device cpu" in errors[0]
    assert done.returncode == 2


def test_a_grid_that_does_not_divide_the_ranks_is_refused_once_by_all(
    launch: Launch, tmp_path: Path
) -> None:
    done = launch(2, (*MESH, "--grid", "2x2", "--output", tmp_path / "none"))
    lines = [line for line in done.stdout.splitlines() if "mesh.train: error: " in line]
    assert "--grid 2x2 takes 4 ranks a sample, which does not divide 2" in lines[0]
    assert done.returncode == 2
    assert "Traceback" not in done.stdout
    assert not (tmp_path / "none").exists()


def test_without_an_exchange_a_rank_trains_as_if_it_were_alone(
    launch: Launch, tmp_path: Path
) -> None:
    flags = (*MESH, "--steps", 1, "--held-out", 1)
    train(launch, 1, *flags, "--output", tmp_path / "alone")
    train(launch, 2, *flags, "--exchange", "none", "--output", tmp_path / "beside")
    alone, beside = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("alone", "beside")
    )
    assert beside["size"] == 2
    assert beside["loss"] == alone["loss"]
    assert beside["held_out_loss"] == alone["held_out_loss"]


def test_ranks_that_share_a_sample_must_exchange(launch: Launch, tmp_path: Path) -> None:
    flags = ("--grid", "1x2", "--exchange", "none", "--output", tmp_path / "none")
    done = launch(2, (*MESH, *flags))
    (line,) = (line for line in done.stdout.splitlines() if "mesh.train: error: " in line)
    assert "--exchange none: the ranks that share a sample (--grid 1x2) must add up" in line
    assert done.returncode == 2
    assert not (tmp_path / "none").exists()
