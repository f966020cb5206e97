"""`hvd-launch tune allreduce --memory device`: the carriers of gradients on GPUs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hvd_ext.errors import HvdExtError
from hvd_launch.machine import module
from hvd_launch.tune.common import jobs
from hvd_launch.tune.common.target import Target, check_results

_TIMEOUT_S = 3600.0
# Of a job that gives device memory to MPI, and may hang.
_MPI_TIMEOUT_S = 600.0
MEASURE = "hvd_ext.arena.cuda.measure"


def run(options: argparse.Namespace, sizes: Sequence[int], target: Target) -> int:
    """Measure in one job, which writes its row into the folder's table; returns 0.

    A library that takes no device memory crashes, hangs or gives wrong sums: then MPI is left out.

    Raises:
        HvdExtError: the job failed.
    """
    folder: Path = options.output
    check_results(folder, ("table.json",))
    path = folder.resolve() / "table.json"
    command = [*module(MEASURE), "-o", str(path), "--rounds", str(max(2, options.rounds))]
    command += ["--least", str(sizes[0]), "--most", str(sizes[-1])]
    lines: list[str] = []
    with_mpi = jobs.run(target, [*command, "--mpi"], (), _MPI_TIMEOUT_S, lines.append)
    if with_mpi.code != 0:
        lines.clear()
        without = jobs.run(target, command, (), _TIMEOUT_S, lines.append)
        if without.code != 0:
            raise HvdExtError(f"no rank could measure: the job {without.reason}")
        lines.append(f"mpi was not measured: the job {with_mpi.reason}")
    if options.json:
        print(path.read_text(encoding="utf-8"), end="")
    else:
        print("\n".join(lines))
    return 0
