"""--reproducible on several hosts: the checkpoint bytes of one process, resumed from it or not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hvd_ext.allreduce.table import Row, Table, dump
from tests.support.training.reproducible_runs import TRAINERS, draw_images, resnet
from tests.support.training.trainer_runs import losses, run_in_turn

# Many trainings; the bits themselves are those of tests/parallel/optimizer/test_reproducible.py.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

JOB_S = 600
STOPPED = 99


def last_checkpoint(output: Path) -> bytes:
    """The bytes of a training's last checkpoint, whether it counts steps or epochs."""
    path = output / "checkpoint.pt"
    return (path if path.exists() else output / "1.pt").read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of each trainer in one process, of all steps and of the first ones."""
    folder = tmp_path_factory.mktemp("alone")
    draw_images(folder / "images")
    commands: dict[str, tuple[object, ...]] = {}
    for name, command in TRAINERS.items():
        commands[f"whole/{name}"] = (*command, "--output", folder / "whole" / name)
        commands[f"half/{name}"] = (*command, "--steps", 2, "--output", folder / "half" / name)
    commands["whole/resnet"] = resnet(folder / "images", folder / "whole" / "resnet")
    # All ranks hear of it four steps later: the fifth of six steps is the last one.
    stopped = resnet(folder / "images", folder / "half" / "resnet")
    commands["half/resnet"] = (*stopped, "--stop-after", "0s")
    done = run_in_turn(0, tmp_path_factory.mktemp("job"), commands)
    for name, run in done.items():
        assert run.returncode == (STOPPED if name == "half/resnet" else 0), (name, run.stderr)
    return folder


@pytest.mark.parametrize(("count", "ranks_per_host"), [(2, 2), (4, 1)])
def test_checkpoints_have_the_bytes_of_one_process(
    build, launch_on, tmp_path, alone, count, ranks_per_host
):
    shutil.copytree(alone / "half", tmp_path / "resumed")
    commands: dict[str, tuple[object, ...]] = {}
    for kind, more in (("whole", ()), ("resumed", ("--resume",))):
        for name, command in TRAINERS.items():
            commands[f"{kind}/{name}"] = (*command, "--output", tmp_path / kind / name, *more)
        # ResNet resumes from the last checkpoint that is there.
        commands[f"{kind}/resnet"] = resnet(alone / "images", tmp_path / kind / "resnet")
    (tmp_path / "job").mkdir()
    # A ring adds in another order than the tree: the direct exchange takes its place.
    table = tmp_path / "table.json"
    table.write_text(dump(Table((Row(0, 0, "host", ((0, "ring"),)),), "a test")))
    env = {"HVD_EXT_TABLE": str(table)}
    with build(count) as hosts:
        done = run_in_turn(
            count * ranks_per_host,
            tmp_path / "job",
            commands,
            launch=lambda args: launch_on(hosts, ranks_per_host, args, env, JOB_S),
        )
    for name, run in done.items():
        assert run.returncode == 0, (name, run.stderr)
    for name in done:
        trainer = Path(name).name
        expected = last_checkpoint(alone / "whole" / trainer)
        assert last_checkpoint(alone / "half" / trainer) != expected
        assert last_checkpoint(tmp_path / name) == expected, name
    for trainer in TRAINERS:
        assert losses(tmp_path / "whole" / trainer) == losses(alone / "whole" / trainer)
