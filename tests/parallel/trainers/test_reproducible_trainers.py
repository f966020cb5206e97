"""--reproducible: the same checkpoint bytes on any number of ranks, resumed or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.training.reproducible_runs import EDSR, TRAINERS, draw_images, resnet
from tests.support.training.trainer_runs import losses, refusals, run_in_turn

# The bits themselves: tests/parallel/optimizer/test_reproducible.py. A setup is several trainings.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

SIZES = (0, 2, 4)
REFUSED = {
    "reproducible=6": ("--reproducible", 6),
    "compression='int8'": ("--reproducible", 4, "--compression", "int8"),
    "sync='local_sgd:steps=2'": ("--reproducible", 4, "--sync", "local_sgd:steps=2"),
    "--exchange horovod": ("--reproducible", 4, "--exchange", "horovod"),
    "--batches-per-allreduce 2": ("--reproducible", 4, "--batches-per-allreduce", 2),
    "--grid": ("--reproducible", 4, "--grid", "2x1"),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    draw_images(folder)
    return folder


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    """Of each trainer on each number of ranks, and one that goes on on other ranks."""
    folder = tmp_path_factory.mktemp("outputs")
    for size in SIZES:
        commands: dict[str, tuple[object, ...]] = {}
        for name, command in TRAINERS.items():
            commands[name] = (*command, "--output", folder / f"{name}-{size}")
        command = resnet(images, folder / f"resnet-{size}")
        commands["resnet"] = (*command, "--checkpoint-every", 4)
        if size == 4:
            halfway = (*TRAINERS["edsr"], "--output", folder / "resumed")
            commands["halfway"] = (*halfway, "--steps", 2)
        if size == 2:
            commands |= {why: (*EDSR, "--output", folder, *flags) for why, flags in REFUSED.items()}
        done = run_in_turn(size, tmp_path_factory.mktemp("job"), commands)
        for why, run in done.items():
            assert run.returncode == (2 if why in REFUSED else 0), run.stderr
            if why in REFUSED:
                (line,) = refusals(run, "edsr.train")
                assert why in line
    resumed = (*TRAINERS["edsr"], "--output", folder / "resumed", "--resume")
    (done_,) = run_in_turn(2, tmp_path_factory.mktemp("job"), {"resumed": resumed}).values()
    assert done_.returncode == 0, done_.stderr
    return folder


@pytest.mark.parametrize("name", [*TRAINERS, "resnet"])
def test_checkpoints_have_the_same_bytes_on_any_number_of_ranks(outputs: Path, name: str) -> None:
    file = "1.pt" if name == "resnet" else "checkpoint.pt"
    files = [(outputs / f"{name}-{size}" / file).read_bytes() for size in SIZES]
    assert files[0] == files[1] == files[2]


def test_logged_losses_are_the_same(outputs: Path) -> None:
    for name in TRAINERS:
        first, *others = (losses(outputs / f"{name}-{size}") for size in SIZES)
        assert len(first) == 4
        assert others == [first, first]


def test_a_run_that_resumes_on_other_ranks_ends_with_the_same_bytes(outputs: Path) -> None:
    resumed, whole = (
        (outputs / name / "checkpoint.pt").read_bytes() for name in ("resumed", "edsr-2")
    )
    assert resumed == whole
