"""The demo's table, its stages, and how an earlier demo is replaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.demo.demo import _turns
from benchmarks.demo.quality import read_digits, require_better
from benchmarks.demo.stages import PHOTOGRAPHS, Stage, Stages, built_beside
from benchmarks.demo.table import ARMS, Row, draw
from benchmarks.harness import BenchmarkError
from hvd_ext.errors import UsageError
from testbed import load


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    folder = tmp_path / "demo"
    (folder / PHOTOGRAPHS).mkdir(parents=True)
    (folder / "summary.json").write_text("earlier")
    return folder


def test_an_earlier_demo_is_replaced_once_the_new_one_is_complete(earlier: Path) -> None:
    with built_beside(earlier) as folder:
        (folder / "log.txt").write_text("new")
        assert (earlier / "summary.json").read_text() == "earlier"
    assert {path.name for path in earlier.iterdir()} == {PHOTOGRAPHS, "log.txt"}
    assert list(earlier.parent.iterdir()) == [earlier]


def test_a_demo_that_fails_leaves_the_earlier_one_and_its_own_log(earlier: Path) -> None:
    for text in ("one", "two"):
        with pytest.raises(BenchmarkError, match="a stage failed"):
            fail(earlier, text)
        assert (earlier.with_name("demo.part") / "log.txt").read_text() == text
        assert (earlier / "summary.json").read_text() == "earlier"


def fail(output: Path, text: str) -> None:
    with built_beside(output) as folder:
        assert [path.name for path in folder.iterdir()] == [PHOTOGRAPHS]
        (folder / "log.txt").write_text(text)
        raise BenchmarkError("a stage failed")


@pytest.mark.parametrize("name", ["demo", "demo.part"])
def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").touch()
    with pytest.raises(UsageError, match="not an earlier demo"), built_beside(tmp_path / "demo"):
        pytest.fail("the block was entered")
    assert (tmp_path / name / "thesis.tex").exists()


def test_what_the_user_set_by_hand_reaches_no_other_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = ARMS["horovod_by_hand"].variables
    for name in by_hand:
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "error")
    for arm in ARMS.values():
        environment = arm.environment()
        assert {name: environment[name] for name in by_hand if name in environment} == arm.variables
        assert "MALLOC_ARENA_MAX" not in environment
        assert environment["HOROVOD_LOG_LEVEL"] == "error"


def test_a_row_says_how_many_times_as_fast_hvd_ext_is() -> None:
    samples = {"horovod": [10, 20, 99], "horovod_by_hand": [5, 8], "hvd_ext": [2], "none": [1]}
    times = Row("a step", "ms", samples).as_json()
    assert (times["gained_vs_horovod"], times["gained_vs_horovod_by_hand"]) == (10, 3.25)
    assert (times["horovod"]["low"], times["horovod"]["median"], times["horovod"]["n"]) == (
        15,
        20,
        3,
    )
    rates = Row("training", "images/s", samples).as_json()
    assert (rates["gained_vs_horovod"], rates["gained_vs_horovod_by_hand"]) == (0.1, 2 / 6.5)


def test_the_table_has_every_arm_and_both_gains() -> None:
    samples = {"horovod": [200.0], "horovod_by_hand": [50.0], "hvd_ext": [25.04], "none": [0.0]}
    long = Row("ResNet-50", "ms of allreduce a step", {arm: [12345.0] for arm in ARMS})
    # As narrow as a terminal can be expected to be.
    console = Console(width=80)
    with console.capture() as shown:
        console.print(draw([Row("EDSR x2", "ms", samples), long], "caption"))
    assert "…" not in shown.get()
    (row,) = (line for line in shown.get().splitlines() if "EDSR x2, ms" in line)
    assert row.split() == [
        "EDSR",
        "x2,",
        "ms",
        "200",
        "50.0",
        "25.0",
        "0.00",
        "7.99",
        "x",
        "2.00",
        "x",
    ]


def test_a_stage_says_when_it_begins_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = Stages(tmp_path / "log.txt")
    printed = stages.run("Counting", [sys.executable, "-c", "print(123)"])
    assert printed == "123\n"
    begun, ended = capsys.readouterr().err.splitlines()
    assert begun == "Counting ..."
    assert ended.startswith("Counting: ")
    with pytest.raises(BenchmarkError, match=r"Failing failed, see .*log\.txt(.|\n)*last words"):
        stages.run("Failing", [sys.executable, "-c", "raise SystemExit('last words')"])
    begun, ended = capsys.readouterr().err.splitlines()
    assert begun == "Failing ..."
    assert ended.startswith("Failing: failed after ")
    assert "123\n" in stages.log.read_text()
    assert [stage.title for stage in stages.done] == ["Counting"]


def test_a_busy_machine_is_said_to_have_been_busy(tmp_path: Path) -> None:
    stages = Stages(tmp_path / "log.txt")
    stages.done = [Stage("EDSR", 1, 0.05)]
    assert stages.on_the_load().startswith("No other program used more than 0.1 of the ")
    cores = (0.3, 0.8, 0.2, 0.05, 0.4, 0.11)
    stages.done = [Stage(f"stage {number}", 1, used) for number, used in enumerate(cores)]
    said = stages.on_the_load()
    assert "The machine was busy: other programs used 0.8 of " in said
    assert said.index("stage 1") < said.index("stage 4") < said.index("stage 0")
    assert "and less during 2 more" in said


STAT = """cpu  9999 0 0 0 0 0 0 0 0 0
cpu0 100 10 20 5000 700 1 2 3 50 0
cpu1 200 0 0 5000 700 0 0 0 0 0
cpu10 400 0 0 5000 700 0 0 0 0 0
intr 5 0 0
"""


def test_only_cores_that_may_be_used_count_and_idle_time_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "_TICKS_A_SECOND", 100)
    assert load.busy_s(STAT, {0}) == pytest.approx(1.36)
    assert load.busy_s(STAT, {0, 1}) == pytest.approx(3.36)
    assert load.busy_s(STAT, {1}) == pytest.approx(2)


def test_what_children_use_is_not_others() -> None:
    begin = load.now()
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    # A child's child too, as a launcher's ranks are.
    call = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    subprocess.run([sys.executable, "-c", call], check=True)
    end = load.now()
    assert end.ours_s - begin.ours_s >= 0.5
    used = load.Moment(begin.clock_s + 2, begin.all_s + 3.5, begin.ours_s + 0.5)
    assert load.cores_of_others(begin, used) == pytest.approx(1.5)
    # Ticks are coarse: less than nothing is nothing.
    assert load.cores_of_others(begin, load.Moment(begin.clock_s + 2, begin.all_s, 9e9)) == 0


def test_a_network_that_learnt_too_little_or_something_else_is_refused(tmp_path: Path) -> None:
    require_better("hvd_ext", {"edsr_rgb_db": 30.1, "bicubic_rgb_db": 30.0})
    with pytest.raises(BenchmarkError, match=r"by hvd_ext reaches 30.00 dB, bicubic 30.00 dB"):
        require_better("hvd_ext", {"edsr_rgb_db": 30.0, "bicubic_rgb_db": 30.0})
    header = "epoch,val_accuracy,img_per_s\n"
    logs = {exchange: tmp_path / exchange for exchange in ("horovod", "hvd_ext")}
    for log, rate in zip(logs.values(), (10, 20), strict=True):
        log.write_text(header + f"1,0.5,{rate}\n2,0.96,{rate}\n")
    assert read_digits(logs) == 0.96
    logs["hvd_ext"].write_text(header + "1,0.5,20\n2,0.9600001,20\n")
    with pytest.raises(BenchmarkError, match="the figures by hvd_ext differ from those by horovod"):
        read_digits(logs)
    logs["horovod"].write_text(header + "2,0.94,20\n")
    with pytest.raises(BenchmarkError, match=r"reads 94\.0% .* less than 95%"):
        read_digits({"horovod": logs["horovod"]})


def test_every_other_round_goes_backwards_so_that_a_drift_disturbs_all_arms_alike() -> None:
    assert [_turns(number, ARMS) for number in (1, 2, 3)] == [
        ["horovod", "horovod_by_hand", "hvd_ext", "none"],
        ["none", "hvd_ext", "horovod_by_hand", "horovod"],
        ["horovod", "horovod_by_hand", "hvd_ext", "none"],
    ]
