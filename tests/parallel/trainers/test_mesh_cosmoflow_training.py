"""The mesh and CosmoFlow trainers, launched as a user launches them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import hvprof
from cosmoflow.data import Universes
from hvd_ext.data.__main__ import main as pack
from mesh.data import Meshes
from tests.conftest import Launch
from tests.support.training.trainer_runs import refusals, run_in_turn

MESH = ("-m", "mesh.train", "--synthetic", "--size", 32, "--samples", 12, "--held-out", 2)
MESH = (*MESH, "--batch-size", 2, "--log-every", 1, "--threads", 1)
FROM_FILES = ("-m", "mesh.train", "--held-out", 1, "--log-every", 1, "--threads", 1, "--steps", 5)
COSMOFLOW = ("-m", "cosmoflow.train", "--thin", 8, "--held-out", 1, "--log-every", 1)
# Of the four cubes two epochs and a half.
COSMOFLOW = (*COSMOFLOW, "--threads", 1, "--steps", 5)
Runs = Mapping[str, "subprocess.CompletedProcess[str]"]


def train(launch: Launch, size: int, *command: object) -> str:
    done = launch(size, command)
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


def rows(folder: Path, name: str = "log.csv") -> list[dict[str, float]]:
    with (folder / name).open() as stream:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(stream)]


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in rows(folder)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the outputs of `runs`, by their names."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What the tests look at: a job of one rank, and then one of two."""
    mesh, cubes = MESH[1:], (*COSMOFLOW[1:], "--synthetic", "--width", 32, "--samples", 5)
    grid = (*mesh, "--grid", "1x2")
    alone = {
        "one": (*mesh, "--steps", 4),
        "alone": (*mesh, "--steps", 1, "--held-out", 1),
        "whole filters": (*cubes, "--steps", 4),
        "shared filters": (*cubes, "--steps", 2),
    }
    shared = ("--gather-before", "features.11", "--split-filters", "features.11", "head")
    epochs = ("cosmoflow.train", "--synthetic", "particles", "--log1p", "--thin", 16)
    epochs = (*epochs, "--width", 32, "--samples", 24, "--held-out", 3, "--steps", 9)
    rate = ("--lr", 1e-3, "--lr-batch", 4, "--lr-scaling", "sqrt", "--warmup-epochs", 1)
    together = {
        "whole": (*grid, "--steps", 4),
        "broken": (*grid, "--steps", 2),
        "ddp": (*grid, "--steps", 4, "--exchange", "ddp"),
        "attached": (*grid, "--steps", 4, "--exchange", "ddp+hvd_ext"),
        "ddp of filters": (*cubes, *shared, "--grid", "2x1x1", "--steps", 1, "--exchange", "ddp"),
        "beside": (*mesh, "--steps", 1, "--held-out", 1, "--exchange", "none"),
        "shared filters": (*cubes, *shared, "--grid", "2x1x1", "--steps", 4, "--resume"),
        "epochs": (*epochs, *rate, "--log-every", 4),
        "no grid": (*mesh, "--grid", "2x2"),
        "no exchange": (*grid, "--exchange", "none"),
        "resumed": (*grid, "--steps", 4, "--resume", "--output", folder / "broken"),
    }
    found = {}
    for size, commands in ((1, alone), (2, together)):
        # Of two equal flags the last holds.
        lines = {n: (c[0], "--output", folder / n, *c[1:]) for n, c in commands.items()}
        found |= run_in_turn(size, tmp_path_factory.mktemp("job"), lines)
    return found


def require(runs: Runs, *names: str) -> None:
    for name in names:
        assert runs[name].returncode == 0, runs[name].stderr


def test_a_grid_learns_the_same_with_ddp(runs: Runs, folder: Path) -> None:
    require(runs, "ddp", "attached")
    assert losses(folder / "ddp") == losses(folder / "attached") == losses(folder / "whole")
    states = [torch.load(folder / name / "checkpoint.pt")["model"] for name in ("ddp", "whole")]
    assert all(states[0][key].equal(states[1][key]) for key in states[1])


def test_ddp_refuses_filters_that_ranks_share(runs: Runs) -> None:
    (line,) = refusals(runs["ddp of filters"], "cosmoflow.train")
    assert "--split-filters: DDP reduces every parameter over all ranks" in line
    assert runs["ddp of filters"].returncode == 2


def test_a_grid_learns_what_one_rank_learns_and_resumes_to_the_bit(
    runs: Runs, folder: Path
) -> None:
    require(runs, "one", "whole", "broken", "resumed")
    one, whole, broken = (folder / name for name in ("one", "whole", "broken"))
    assert "1x2 a sample: loss " in runs["whole"].stdout
    assert len(losses(whole)) == 4
    assert losses(whole) == pytest.approx(losses(one), rel=1e-3)
    summaries = [json.loads((of / "summary.json").read_text()) for of in (one, whole)]
    for figure in ("held_out_loss", "accuracy", "precision", "recall", "iou"):
        figures = [summary[figure] for summary in summaries]
        assert figures[1] == pytest.approx(figures[0], rel=1e-3)
        assert 0 < figures[1] < 1, figure

    assert "2 steps on 2 ranks" in runs["broken"].stdout
    assert losses(broken) == losses(whole)
    states = [torch.load(of / "checkpoint.pt") for of in (whole, broken)]
    assert states[0]["step"] == states[1]["step"] == 4
    assert all(states[0]["model"][key].equal(states[1]["model"][key]) for key in states[0]["model"])


def test_each_epoch_is_validated_and_the_rate_grows_in_the_first(runs: Runs, folder: Path) -> None:
    require(runs, "epochs")
    out, output = runs["epochs"].stdout + runs["epochs"].stderr, folder / "epochs"
    # A universe is 8 cubes: all of the last one are held out.
    assert "16 samples to learn from, 8 held out; 2 a step, learning rate 0.000707" in out
    found = rows(output)
    assert [row["step"] for row in found] == [4, 8, 9]
    assert [row["epoch"] for row in found] == [0.5, 1, 1.125]
    assert [row["lr"] for row in found] == pytest.approx([0.5**1.5 * 1e-3, *[0.5**0.5 * 1e-3] * 2])
    judged = rows(output, "validation.csv")
    assert [row["step"] for row in judged] == [8, 9]
    assert 0 < judged[0]["mae"] < 1
    assert judged[0]["mae"] != judged[1]["mae"]
    summary = json.loads((output / "summary.json").read_text())
    assert summary["mae"] == judged[1]["mae"]
    assert f"held out loss {judged[0]['held_out_loss']:.4f}, mae {judged[0]['mae']:.4f}" in out
    best = min(judged, key=lambda row: row["held_out_loss"])
    assert torch.load(output / "best.pt")["step"] == best["step"]


def test_ranks_that_share_filters_go_on_from_what_one_rank_did(runs: Runs, folder: Path) -> None:
    """Adam's state is whole in the checkpoint, and each rank takes its filters' part of it."""
    require(runs, "whole filters", "shared filters")
    one, two = folder / "whole filters", folder / "shared filters"
    assert len(losses(two)) == 4
    assert losses(two) == pytest.approx(losses(one), rel=1e-3)
    states = [torch.load(of / "checkpoint.pt") for of in (one, two)]
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
    assert calls["checkpoint"] == 3  # before the validation, the last, and the best


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
    (copy,) = (tmp_path / "disk").glob("*/*.pack")
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


@pytest.mark.long
def test_what_a_machine_has_not_is_said_in_one_line(launch: Launch, tmp_path: Path) -> None:
    program = tmp_path / "limited.py"
    program.write_text(
        "import resource, runpy, sys\n"
        "import torch\n"
        "def train(*flags):\n"
        "    sys.argv[1:] = [*given, *flags]\n"
        "    runpy.run_module('mesh.train', run_name='__main__', alter_sys=True)\n"
        "given = sys.argv[2:]\n"
        "try:\n"
        "    train('--device', 'cuda')\n"
        "except SystemExit as left:\n"
        "    print('exit code', left.code, flush=True)\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))\n"
        "train('--size', '1024', '--batch-size', '16')\n"
    )
    words = (program, *MESH[1:], "--steps", 1, "--output", tmp_path / "none")
    done = launch(2, words, env={"CUDA_VISIBLE_DEVICES": ""})
    first, *errors = (line for line in done.stdout.splitlines() if "mesh.train: error: " in line)
    assert "--device cuda: torch " in first
    assert "finds no GPU: give --device cpu" in first
    assert all(f"[{rank}] exit code 2" in done.stdout for rank in range(2))
    assert errors, done.stdout
    assert "does not fit in memory: " in errors[0]
    assert "share a sample among more ranks (--grid), or lower --batch-size" in errors[0]
    assert done.returncode == 1
    assert "Traceback" not in done.stdout


def test_a_grid_that_does_not_divide_the_ranks_is_refused_once_by_all(
    runs: Runs, folder: Path
) -> None:
    done = runs["no grid"]
    (line,) = refusals(done, "mesh.train")
    assert "--grid 2x2 takes 4 ranks a sample, which does not divide 2" in line
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (folder / "no grid").exists()


def test_without_an_exchange_a_rank_trains_as_if_it_were_alone(runs: Runs, folder: Path) -> None:
    require(runs, "alone", "beside")
    alone, beside = (
        json.loads((folder / name / "summary.json").read_text()) for name in ("alone", "beside")
    )
    assert beside["size"] == 2
    assert beside["loss"] == alone["loss"]
    assert beside["held_out_loss"] == alone["held_out_loss"]


def test_ranks_that_share_a_sample_must_exchange(runs: Runs, folder: Path) -> None:
    done = runs["no exchange"]
    (line,) = refusals(done, "mesh.train")
    assert "--exchange none: the ranks that share a sample (--grid 1x2) must add up" in line
    assert done.returncode == 2
    assert not (folder / "no exchange").exists()
