"""Training whose gradients are compressed between hosts: its bits, and a trainer's resuming."""

from __future__ import annotations

import pytest
import torch

import hvprof
from hvprof.recording.session import variables
from tests.support.compression.other_codec import SCALAR, compile_codec
from tests.support.training.trainer_runs import losses, same

FLAGS = (
    *("--synthetic", "--blocks=2", "--features=8", "--patch=12", "--batch-size=2", "--threads=1"),
    *("--log-every=1", "--compression=int8", "--steps=7", "--checkpoint-every=4", "--keep=2"),
)
FORMATS = ("bf16", "fp16", "int8", "powersgd:rank=2")
SYNCS = ("every_step", "diloco:steps=3", "one_step_late")


@pytest.mark.parametrize(
    ("count", "ranks_per_host", "formats"),
    [
        (2, 1, FORMATS[-2:]),
        pytest.param(2, 2, FORMATS, marks=pytest.mark.long),
        pytest.param(4, 1, FORMATS, marks=pytest.mark.long),
    ],
)
def test_hosts_of_other_cpus_have_the_same_bits_and_runs_repeat(
    build, launch_on, tmp_path, count, ranks_per_host, formats
):
    codec = compile_codec(tmp_path, SCALAR)._name
    with build(count) as hosts:
        done = launch_on(
            hosts,
            ranks_per_host,
            ["tests/programs/optimizer/compressed_on_hosts.py", codec, *formats],
            env={"HVD_EXT_BUCKET_BYTES": "8 KiB"},
            timeout=200,
        )
    assert done.returncode == 0, done.stdout
    assert all(f"ok {rank}" in done.stdout for rank in range(count * ranks_per_host))


@pytest.mark.long
@pytest.mark.parametrize("jobs", ["one", "several"])
def test_trainers_resume_to_the_bit(build, launch_on, tmp_path, jobs):
    (tmp_path / "recording").mkdir()
    recorded = variables(tmp_path / "recording", trace_events=0)

    def train(folder, sync, *more):
        return [*FLAGS, f"--sync={sync}", f"--output={tmp_path / folder / sync}", *more]

    first = [train("whole", sync) for sync in SYNCS]
    again = []
    for sync in SYNCS:
        again.append(["cut", *(tmp_path / folder / sync for folder in ("whole", "cut"))])
        again.append(train("cut", sync, "--resume"))
    for runs in [first + again] if jobs == "one" else [first[:1], first[1:], again]:
        words = [word for run in runs for word in ("--then", *run)][1:]
        with build(2) as hosts:
            done = launch_on(
                hosts,
                1,
                ["tests/programs/training/trains_in_turn.py", *words],
                env={"HVD_EXT_BUCKET_BYTES": "8 KiB", **(recorded if runs[0] is first[0] else {})},
                timeout=200,
            )
        assert done.returncode == 0, done.stdout
    for sync in SYNCS:
        whole, cut = (torch.load(tmp_path / f / sync / "checkpoint.pt") for f in ("whole", "cut"))
        assert same(whole["model"], cut["model"])
        assert losses(tmp_path / "whole" / sync) == losses(tmp_path / "cut" / sync)
        assert len(set(losses(tmp_path / "cut" / sync))) == 7
        state = whole["optimizer"]["hvd_ext"]
        assert any(kept.any() for kept in (state.get("rounds") or state)["residuals"].values())
    # A byte of four; what has one dimension, what measures, and a checkpoint, travel as they are.
    wire = hvprof.Analysis(hvprof.load(tmp_path / "recording")).between_hosts
    assert 0.25 < wire.ratio < (0.9 if jobs == "one" else 0.8)
