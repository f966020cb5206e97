"""The demo's arms train for real, and those that exchange learn alike."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.demo.demo import JUDGED, Demo, Lengths
from benchmarks.demo.table import ARMS
from benchmarks.harness import BenchmarkError


@pytest.mark.long
def test_all_arms_train_and_those_that_exchange_learn_alike(tmp_path: Path) -> None:
    demo = Demo(tmp_path, Lengths(rounds=1, edsr_steps=2, edsr_total=3))
    speed, allreduce = demo.train_edsr()
    assert all(len(speed.samples[arm]) == 1 and speed.samples[arm][0] > 0 for arm in ARMS)
    assert allreduce.samples["horovod"][0] > 0
    assert allreduce.samples["hvd_ext"][0] > 0
    assert allreduce.samples["none"] == [0]
    assert len(demo.stages.done) == 1 + len(ARMS) + len(JUDGED)

    logs = {arm: tmp_path / f"edsr_{arm}" / "log.csv" for arm in ARMS}
    losses = {arm: read(log) for arm, log in logs.items()}
    assert [step for step, _ in losses["hvd_ext"]] == ["2", "3"]
    assert losses["hvd_ext"] == losses["horovod_by_hand"]
    assert losses["hvd_ext"][:1] == losses["horovod"] != losses["none"]

    # So few steps teach nothing, and that is said. One photograph shows it.
    for photograph in (demo.photographs / "test").glob("c*"):
        photograph.unlink()
    with pytest.raises(
        BenchmarkError, match=r"EDSR by horovod_by_hand reaches -?[\d.]+ dB, bicubic"
    ):
        demo.evaluate()

    (_, loss) = losses["hvd_ext"][0]
    wrong = repr(float(loss) * (1 + 2**-23))
    logs["hvd_ext"].write_text(logs["horovod_by_hand"].read_text().replace(loss, wrong))
    with pytest.raises(
        BenchmarkError, match="the losses of hvd_ext differ from those of Horovod, tuned"
    ):
        demo.check_losses()


def read(log: Path) -> list[tuple[str, str]]:
    with log.open(newline="") as stream:
        return [(row["step"], row["loss"]) for row in csv.DictReader(stream)]
