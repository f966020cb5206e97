"""Prints how many threads of a rank are idle by policy: after init, and with two optimizers."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import hvd_ext.torch as hvd


def main() -> None:
    hvd.init()
    report("init")
    # It still serves the script's own exchanges.
    assert hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum).item() == 3
    report_of_optimizer("fallback", op=hvd.Adasum)
    report_of_optimizer("arena")
    hvd.shutdown()


def report_of_optimizer(when: str, **named: object) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **named
    )
    report(when)
    del optimizer


def report(when: str) -> None:
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    idle = [os.sched_getscheduler(task) for task in tasks].count(os.SCHED_IDLE)
    print(f"IDLE {when} {idle} {os.sched_getscheduler(0)}", flush=True)


if __name__ == "__main__":
    main()
