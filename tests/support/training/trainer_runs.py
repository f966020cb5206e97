"""Runs the bundled trainers as a user does, and reads what they leave."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from tests.support.launch.launching import LAUNCHERS, rank_environment, run_to_end

ROOT = Path(__file__).parents[3]
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
EXCHANGES = ("horovod", "hvd_ext")
DDP = ("ddp", "ddp+hvd_ext")
Launch = Callable[[Sequence[object]], subprocess.CompletedProcess[str]]


def run_ranks(
    size: int, *command: object, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run `python COMMAND` on `size` ranks, for at most `timeout` s."""
    return subprocess.run(
        [HOROVODRUN, "-np", str(size), sys.executable, *map(str, command)],
        cwd=ROOT,
        env=os.environ
        | {
            "OMP_NUM_THREADS": "1",
            # Tests beside this one may want the cores.
            "OMPI_MCA_mpi_yield_when_idle": "1",
            # horovodrun asks the shell for mpirun.
            "PATH": f"{HOROVODRUN.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def train(size: int, *flags: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    done = run_ranks(size, "-m", *flags, "--threads", 1, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done


def run_in_turn(
    size: int,
    folder: Path,
    commands: Mapping[str, Sequence[object]],
    env: Mapping[str, str] | None = None,
    launch: Launch | None = None,
) -> dict[str, subprocess.CompletedProcess[str]]:
    """Run trainers one after another in one job of `size` ranks: starting a job takes longest.

    Returns what each did as if it had been a job of its own. One that kills its process has
    to be that.

    Args:
        size: of ranks; 0: one process, without a launcher.
        folder: an empty one.
        commands: by the names of the runs, a module with a `main`, and its flags.
        env: added to the ranks' environment.
        launch: starts the ranks with the arguments of their Python, in place of `hvd-launch`.
    """
    lines = [list(map(str, command)) for command in commands.values()]
    (folder / "commands.json").write_text(json.dumps(lines))
    program = ["-m", "tests.programs.training.in_turn", str(folder)]
    if launch:
        job = launch(program)
    else:
        launcher = LAUNCHERS["hvd-launch"](size) if size else []
        command = [*launcher, sys.executable, *program]
        job = run_to_end(command, rank_environment(env or {}), 200)
    assert job.returncode == 0, job.stdout
    found = {}
    for number, (name, command) in enumerate(zip(commands, lines, strict=True)):
        ranks = [json.loads(path.read_text()) for path in folder.glob(f"{number}-*.json")]
        assert len(ranks) == max(size, 1), job.stdout
        (code,) = {rank["returncode"] for rank in ranks}
        out, err = ("".join(rank[stream] for rank in ranks) for stream in ("stdout", "stderr"))
        found[name] = subprocess.CompletedProcess(command, code, out, err)
    return found


def read_log(folder: Path, name: str = "log.csv") -> list[dict[str, str]]:
    with (folder / name).open() as stream:
        return list(csv.DictReader(stream))


def losses(folder: Path) -> list[str]:
    return [row["loss"] for row in read_log(folder)]


def same(a: object, b: object) -> bool:
    """Whether two checkpoints hold the same, tensors to the bit."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.equal(b)
    return a == b


def refusals(done: subprocess.CompletedProcess[str], program: str) -> list[str]:
    """Lines with an error, from `program:` on."""
    # horovodrun writes its tags, [JOB,RANK]<stderr>:, between lines, and at times within one.
    text = re.sub(r"\[\d+,\d+\]<std(?:err|out)>?:?", "", done.stderr)
    lines = [line for line in text.splitlines() if f"{program}: error: " in line]
    return [line[line.index(program) :] for line in lines]
