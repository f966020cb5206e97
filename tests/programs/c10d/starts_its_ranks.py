"""`starts_its_ranks.py HOW`: asks for Gloo in two processes, which it starts itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

SIZE = 2
SCRIPT = str(Path(__file__).resolve())
# What Lightning's launcher writes, and what hvd_ext does not recognize.
AGAIN = {
    "again": [sys.executable, SCRIPT],
    "again, unbuffered": [sys.executable, "-u", "-W", "ignore", SCRIPT],
    "otherwise": [
        sys.executable,
        "-c",
        f"import runpy; runpy.run_path({SCRIPT!r}, None, '__main__')",
    ],
}


def train(rank: int, port: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=SIZE
    )
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(2, 4)).sum().backward()
    hooks = [hook.__name__ for hook, _ in model._comm_hooks]
    print(f"backend {dist.get_backend()} hooks {hooks}", flush=True)
    dist.destroy_process_group()


def train_elastic(port: str) -> None:
    train(int(os.environ["RANK"]), port)


def main(how: str, port: str) -> None:
    if how == "spawn":
        multiprocessing.spawn(train, (port,), SIZE)
    elif how == "elastic":  # as Accelerate's notebook_launcher
        asked = LaunchConfig(1, 1, SIZE, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0")
        asked.start_method = "fork"
        elastic_launch(asked, train_elastic)(port)
    elif "SECOND" in os.environ:
        train(1, port)
    else:
        second = subprocess.Popen([*AGAIN[how], *sys.argv[1:]], env={**os.environ, "SECOND": "yes"})
        try:
            train(0, port)
            assert second.wait() == 0
        finally:
            second.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
