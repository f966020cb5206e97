"""What the trainers share: files that are refused rather than half believed, and flags."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edsr import train as edsr_train
from hvd_ext.cli import above_zero, at_least, not_negative
from hvd_ext.errors import HvdExtError, UsageError
from mesh import train as mesh_train
from resnet import train as resnet_train
from resnet.folder import ClassFolder
from training import ranks
from training.checkpoint import (
    keep_last,
    load_checkpoint,
    require_same_flags,
    save_checkpoint,
    shaping_flags,
)
from training.log import CsvLog, tensorboard
from training.loop import descend
from training.run import Run

torch = pytest.importorskip("torch")


def test_a_checkpoint_with_one_wrong_bit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"kind": "a", "model": {"w": torch.ones(1000)}})
    assert load_checkpoint(path, "a", ("model",))["model"]["w"].sum() == 1000
    data = bytearray(path.read_bytes())
    # Within the tensor's numbers, where no format would notice.
    data[data.index(np.float32(1).tobytes() * 500) + 1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match="damaged or cut off"):
        load_checkpoint(path, "a", ("model",))


def test_a_full_disk_is_named_as_such() -> None:
    with pytest.raises(HvdExtError, match=r"^cannot write /dev/full: No space left on device$"):
        save_checkpoint(Path("/dev/full"), {"kind": "a", "model": {"w": torch.ones(1000)}})


def test_a_checkpoint_that_lacks_something_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"kind": "a", "model": {}})
    with pytest.raises(UsageError, match="lacks step, seed"):
        load_checkpoint(path, "a", ("model", "step", "seed"))


def flags(**changed: object) -> argparse.Namespace:
    usual = {
        "lr": 1e-3,
        "bf16": False,
        "blocks": None,
        "batch_size": 4,
        "steps": 2,
        "device": "cpu",
        "may_change": {"steps", "device"},
    }
    return argparse.Namespace(**usual | changed)


def written(batch: int) -> dict[str, object]:
    return {"flags": shaping_flags(flags()), "global_batch": batch}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr": 2e-3}, "--lr was 0.001, now 0.002: "),
        ({"bf16": True}, "--bf16 was not given, now given: "),
        (
            {"blocks": 3, "batch_size": 8},
            "--batch-size was 4, now 8; --blocks was not given, now 3",
        ),
    ],
)
def test_a_run_is_not_resumed_with_other_flags(changed: dict[str, object], message: str) -> None:
    asked = flags(**changed)
    with pytest.raises(UsageError, match=r"cannot resume a\.pt: ") as error:
        require_same_flags(Path("a.pt"), written(8), asked, 2 * int(asked.batch_size))
    assert message in str(error.value)


def test_where_and_how_long_a_run_goes_on_may_change() -> None:
    require_same_flags(Path("a.pt"), written(8), flags(steps=9, device="cuda"), 8)
    # Half the ranks, the same batch of all.
    require_same_flags(Path("a.pt"), written(8), flags(batch_size=8), 8)


@pytest.mark.parametrize("trainer", [edsr_train, mesh_train, resnet_train])
def test_every_flag_that_may_change_is_the_trainers(trainer: ModuleType) -> None:
    parser = trainer.parser()
    assert parser.get_default("may_change") <= {action.dest for action in parser._actions}


def test_flags_that_say_where_or_how_long_do_not_shape_training() -> None:
    flags = shaping_flags(mesh_train.parser().parse_args(["--synthetic", "--output", "a"]))
    assert {"lr", "seed", "preset"} <= flags.keys()
    assert not {"output", "grid", "workers", "log_every", "threads", "may_change"} & flags.keys()


def test_the_last_checkpoints_stay_and_no_others(tmp_path: Path) -> None:
    path, other = tmp_path / "checkpoint.pt", tmp_path / "checkpoint-best.pt"
    other.touch()
    # Out of order, as after a resumption from an earlier step.
    for step in (5, 100, 90, 95):
        save_checkpoint(path, {"kind": "a", "step": step})
        keep_last(path, step, keep=2)
    kept = {p.name: load_checkpoint(p, "a")["step"] for p in tmp_path.glob("checkpoint-[0-9]*")}
    assert kept == {"checkpoint-95.pt": 95, "checkpoint-100.pt": 100}
    assert load_checkpoint(path, "a")["step"] == 95
    assert other.exists()
    keep_last(path, 96, keep=0)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_checkpoint_is_kept_where_files_have_one_name_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*paths: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refused)
    save_checkpoint(tmp_path / "checkpoint.pt", {"kind": "a"})
    keep_last(tmp_path / "checkpoint.pt", 7, keep=1)
    assert load_checkpoint(tmp_path / "checkpoint-7.pt", "a")


@pytest.mark.parametrize(("higher", "best"), [(False, [3, 2]), (True, [3, 4])])
def test_the_best_figure_is_remembered(higher: bool, best: list[float]) -> None:
    run = Run.__new__(Run)
    run.best = None
    figures = [float("nan"), 3, 3, 2, 4, float("nan")]
    assert [figure for figure in figures if run.improves(figure, higher_is_better=higher)] == best


def test_a_step_is_clipped_as_one_vector() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in (2, 3)]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    slopes = (torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0, 0.0]))

    def loss() -> torch.Tensor:
        return sum((p * slope).sum() for p, slope in zip(parameters, slopes, strict=True))

    descend(optimizer, loss, clip=0.5)
    torch.testing.assert_close(torch.cat(parameters), -torch.cat(slopes) / 10)
    descend(optimizer, loss, loss)
    torch.testing.assert_close(torch.cat(parameters), -torch.cat(slopes) * 2.1)


def test_rows_go_to_tensorboard_too(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "board"
    for resumed_at, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        board = tensorboard(folder, resumed_at)
        log = CsvLog(tmp_path / "log.csv", ("step", "loss"), resumed_at=resumed_at, board=board)
        for step in steps:
            log.write(step, step / 2 + resumed_at)
        board.close()
    read = events.EventAccumulator(str(folder)).Reload()
    assert [(e.step, e.value) for e in read.Scalars("log/loss")] == [
        *((1, 0.5), (2, 1), (3, 3.5), (4, 4))
    ]


def test_tensorboard_that_is_not_installed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tensorboard(None, 0) is None
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="pip install tensorboard"):
        tensorboard(tmp_path / "board", 0)


def test_a_save_that_is_killed_leaves_one_file_at_most(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    for _ in range(3):
        child = os.fork()
        if child == 0:
            save_checkpoint(path, {"kind": "a", "ends": Ends()})
        os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 1


class Ends:
    """Ends the process that pickles it."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        os._exit(1)


@pytest.mark.parametrize("row", [b"x,1,2\n", b"\xff\xfe,0,1\n"])
def test_a_log_of_something_else_is_not_gone_on_with(tmp_path: Path, row: bytes) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"step,loss,lr\n" + row)
    with pytest.raises(UsageError, match="not a log of this program"):
        CsvLog(path, ("step", "loss", "lr"), resumed_at=3)
    assert path.read_bytes().endswith(row)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (at_least(0), "1" * 20),
        (at_least(0, most=4096), "5000"),
        (at_least(1), "0"),
        (not_negative, "-1"),
        (not_negative, "inf"),
        (not_negative, "nan"),
        (above_zero, "0"),
    ],
)
def test_numbers_that_cannot_be_meant(kind, text) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        kind(text)
    assert not_negative("0") == 0.0
    assert at_least(0)("7") == 7


@pytest.mark.parametrize("pattern", ["{foo}", "{", "{epoch:zz}", "{0}", "same"])
def test_names_of_checkpoints_that_cannot_be(pattern: str) -> None:
    args = resnet_train.parser().parse_args(
        ["--train-dir", "a", "--val-dir", "b", "--checkpoint-format", pattern]
    )
    with pytest.raises(UsageError, match="--checkpoint-format"):
        resnet_train._checked(args)


def test_sixteen_bits_a_channel_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    Image.fromarray(np.full((80, 80), 40_000, np.uint16)).save(folder / "deep.png")
    with pytest.raises(UsageError, match="bits a channel, not 8"):
        ClassFolder.read(tmp_path)[0]


@pytest.mark.parametrize(
    ("cores", "threads"),
    [
        ([{0, 1}, {0, 1}], 1),  # all may use all
        ([{0, 1}, {2, 3}], 2),  # each has its own
        ([{0}, {0}, {0}], 1),  # more ranks than cores
        ([{0, 1, 2, 3, 4, 5}] * 2, 3),
    ],
)
def test_threads_follow_from_the_cores_that_the_nodes_ranks_may_use(
    monkeypatch: pytest.MonkeyPatch, cores: list[set[int]], threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores[0])
    hvd = SimpleNamespace(
        cross_rank=lambda: 0,
        local_size=lambda: len(cores),
        # The other node's ranks do not count.
        allgather_object=lambda mine, name: [*((0, own) for own in cores), (1, {7, 8, 9})],
    )
    assert ranks._threads(hvd) == threads


def test_what_the_exchange_does_not_have_is_refused() -> None:
    hvd: Any = SimpleNamespace(Compression=SimpleNamespace(none="as it is", fp16="halves"))
    args = argparse.Namespace(exchange="horovod", compression=None, sync=None, reproducible=None)
    assert ranks.exchange_options(args, hvd) == {"compression": "as it is"}
    args.compression = "fp16"
    assert ranks.exchange_options(args, hvd) == {"compression": "halves"}
    args.compression = "int8"
    with pytest.raises(UsageError, match="int8: --exchange horovod has only none, fp16"):
        ranks.exchange_options(args, hvd)
    args.compression, args.sync = None, "diloco:steps=8"
    with pytest.raises(UsageError, match="--sync diloco:steps=8: --exchange horovod exchanges"):
        ranks.exchange_options(args, hvd)
