"""A trainer whose gradients are compressed between hosts, stopped and resumed."""

from __future__ import annotations

import csv

import hvprof
from hvprof.recording.session import variables

FLAGS = (
    "-m",
    "edsr.train",
    "--synthetic",
    "--blocks",
    2,
    "--features",
    8,
    "--patch",
    12,
    "--log-every",
    1,
)


def test_resuming_with_compression_gives_the_same_losses(build, launch_on, tmp_path):
    def train(name, *flags):
        with build(2) as hosts:
            done = launch_on(
                hosts,
                1,
                [*FLAGS, "--compression", "int8", "--output", tmp_path / name, *flags],
                env={"HVD_EXT_BUCKET_BYTES": "8 KiB", **recorded},
                timeout=120,
            )
        assert done.returncode == 0, done.stdout
        with (tmp_path / name / "log.csv").open() as stream:
            return [row["loss"] for row in csv.DictReader(stream)]

    (tmp_path / "recording").mkdir()
    recorded = variables(tmp_path / "recording", trace_events=0)
    whole = train("whole", "--steps", 8, "--checkpoint-every", 4)
    recorded = {}
    train("cut", "--steps", 4)
    assert train("cut", "--steps", 8, "--checkpoint-every", 4, "--resume") == whole
    assert len(set(whole)) == 8
    # A byte of four; what has one dimension, and what measures, travel as they are.
    wire = hvprof.Analysis(hvprof.load(tmp_path / "recording")).between_hosts
    assert 0.25 < wire.ratio < 0.8
