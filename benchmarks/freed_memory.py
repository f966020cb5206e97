"""Cost of a training step that takes freed memory from the kernel again, and remedies.

Two ranks compute at once and exchange nothing. Each way is a separate job, since malloc
reads its variables when a program starts; the jobs take turns.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import harness
from hvd_ext.cli import at_least
from hvd_ext.system.freed_memory import VARIABLES
from testbed import ranks, timing

_MODULE = "benchmarks.freed_memory"
_RANKS = 2
_WARM_UP = 3
_STEPS = {"resnet50": 12, "edsr": 60}
_HUGE = ":".join(
    (
        "glibc.malloc.hugetlb=1",
        f"glibc.malloc.mmap_max={VARIABLES['MALLOC_MMAP_MAX_']}",
        f"glibc.malloc.trim_threshold={VARIABLES['MALLOC_TRIM_THRESHOLD_']}",
    )
)
_TRIM = {"MALLOC_TRIM_THRESHOLD_": VARIABLES["MALLOC_TRIM_THRESHOLD_"]}
_WAYS: dict[str, dict[str, str]] = {
    "as glibc comes": {"HVD_EXT_KEEP_MEMORY": "0"},
    "M_TRIM_THRESHOLD": _TRIM,
    "and M_MMAP_THRESHOLD 32 MiB": {**_TRIM, "MALLOC_MMAP_THRESHOLD_": str(2**25)},
    "kept (and M_MMAP_MAX 0)": VARIABLES,
    "kept, glibc.malloc.hugetlb=1": {"GLIBC_TUNABLES": _HUGE},
    "kept, THP_MEM_ALLOC_ENABLE=1": {**VARIABLES, "THP_MEM_ALLOC_ENABLE": "1"},
}


def main(arguments: Sequence[str]) -> int:
    """Launch the jobs, or be a rank of one."""
    parser = harness.parser("freed_memory", __doc__, "--json F", rounds=3)
    parser.add_argument("--model", choices=_STEPS, help="only this one")
    parser.add_argument("--steps", type=at_least(1), help="timed in a job (resnet50: 12, edsr: 60)")
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options.model, options.steps)
        return 0
    models = [options.model] if options.model else list(_STEPS)
    result = {"ranks": _RANKS, "cases": [_compare(model, options) for model in models]}
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _compare(model: str, options: Any) -> dict[str, Any]:
    words = ["--model", model, "--steps", str(options.steps or _STEPS[model])]
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in _WAYS}
    for _ in range(options.rounds):
        for name, variables in _WAYS.items():
            start = ranks.hvd_launch(_RANKS)
            told[name].append(ranks.launch(_MODULE, _RANKS, words, 300, start, variables))
    times_ms = {name: [t for job in jobs for t in job["step_ms"]] for name, jobs in told.items()}
    plain = times_ms["as glibc comes"]
    ways = [
        {
            "name": name,
            "variables": _WAYS[name],
            "step_ms": timing.summary(times_ms[name]),
            "ratio": timing.ratio(plain, times_ms[name]),
            **{
                key: statistics.median(job[key] for job in jobs)
                for key in ("cpu_ms", "system_ms", "page_faults", "peak_mib")
            },
        }
        for name, jobs in told.items()
    ]
    return {"model": model, "ways": ways}


def _print(result: dict[str, Any]) -> None:
    for case in result["cases"]:
        figures = ("ms", "middle half", "times as fast", "CPU ms", "kernel's", "page faults", "MiB")
        rows = [
            (
                way["name"],
                *harness.times(way["step_ms"], 1),
                f"{way['ratio']:.2f}",
                f"{way['cpu_ms']:.1f}",
                f"{way['system_ms']:.1f}",
                f"{way['page_faults']:.0f}",
                f"{way['peak_mib']:.0f}",
            )
            for way in case["ways"]
        ]
        title = f"a step of {case['model']}, {result['ranks']} ranks at once"
        harness.print_table(title, ("", *figures), rows, width=100)


def _work(model: str, steps: int) -> None:
    import torch
    from mpi4py import MPI

    torch.set_num_threads(1)
    torch.manual_seed(1)
    step = _resnet50() if model == "resnet50" else _edsr()
    for _ in range(_WARM_UP):
        step()
    MPI.COMM_WORLD.Barrier()
    times_ms = []
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(steps):
        began_s = time.perf_counter()
        step()
        times_ms.append(1e3 * (time.perf_counter() - began_s))
    after = resource.getrusage(resource.RUSAGE_SELF)
    # Until the other rank is there too, it should not have the machine to itself.
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        system_ms = 1e3 * (after.ru_stime - before.ru_stime) / steps
        ranks.report(
            {
                "step_ms": times_ms,
                "cpu_ms": system_ms + 1e3 * (after.ru_utime - before.ru_utime) / steps,
                "system_ms": system_ms,
                "page_faults": (after.ru_minflt - before.ru_minflt) / steps,
                "peak_mib": after.ru_maxrss / 1024,
            }
        )


def _resnet50() -> Callable[[], None]:
    """As the demo trains it."""
    import torch

    from resnet.model import resnet50

    model = resnet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(4, 3, 64, 64), torch.randint(1000, (4,))
    loss = torch.nn.functional.cross_entropy
    return lambda: _descend(optimizer, lambda: loss(model(images), labels))


def _edsr() -> Callable[[], None]:
    """As the demo trains it."""
    import torch

    from edsr.model import edsr

    model = edsr(2, blocks=4, features=32)
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learnt, lr=1e-3)
    low, high = 255 * torch.rand(4, 3, 24, 24), 255 * torch.rand(4, 3, 48, 48)
    loss = torch.nn.functional.l1_loss
    return lambda: _descend(optimizer, lambda: loss(model(low), high))


def _descend(optimizer: Any, loss: Callable[[], Any]) -> None:
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


if __name__ == "__main__":
    harness.run(main, "freed_memory")
