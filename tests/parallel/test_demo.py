"""The demo's arms train for real: in turns, resumed, with the same losses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.demo import Demo, Lengths
from benchmarks.demo_table import ARMS
from benchmarks.harness import BenchmarkError


def test_all_arms_train_in_turns_and_those_that_exchange_learn_alike(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    demo = Demo(tmp_path, Lengths(rounds=2, edsr_steps=2, edsr_total=5))
    speed, allreduce = demo.train_edsr()
    # ABCD, DCBA: a drift of the machine disturbs all arms alike.
    begun = [line for line in capfd.readouterr().err.splitlines() if line.endswith(" ...")]
    titles = [arm.title for arm in ARMS.values()]
    in_turns = [*(f"{title}, round 1" for title in titles)]
    in_turns += [f"{title}, round 2" for title in reversed(titles)]
    assert begun == [
        "Writing photographs ...",
        *(f"EDSR x2 with {turn} of 2 ..." for turn in in_turns),
        "EDSR x2 with hvd_ext, on to step 5 ...",
    ]
    assert all(len(speed.samples[arm]) == 2 and min(speed.samples[arm]) > 0 for arm in ARMS)
    assert min(allreduce.samples["horovod"] + allreduce.samples["hvd_ext"]) > 0
    assert allreduce.samples["none"] == [0, 0]

    losses = {arm: read(tmp_path / f"edsr_{arm}" / "log.csv") for arm in ARMS}
    assert [step for step, _ in losses["hvd_ext"]] == ["2", "4", "5"]
    assert losses["hvd_ext"][:2] == losses["horovod"] == losses["horovod_by_hand"]
    assert losses["none"][0] != losses["horovod"][0]

    by_hand = tmp_path / "edsr_horovod_by_hand" / "log.csv"
    (_, loss) = losses["horovod_by_hand"][-1]
    by_hand.write_text(by_hand.read_text().replace(loss, repr(float(loss) * (1 + 2**-23))))
    with pytest.raises(BenchmarkError, match="the losses of Horovod by hand and hvd_ext differ"):
        demo.check_losses()


def read(log: Path) -> list[tuple[str, str]]:
    with log.open(newline="") as stream:
        return [(row["step"], row["loss"]) for row in csv.DictReader(stream)]
