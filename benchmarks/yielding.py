"""Cost of a thread that waits in MPI next to a computation, and the gain of yielding.

Each rank computes in one thread; in another it meets the other ranks every millisecond in an
allreduce of 8 bytes, as stock Horovod's background thread does, whose wait is MPI's. Each way is
a separate job, since MPI reads its variables when it starts; the jobs alternate. The first way
with that thread is the library's default, with which the others are compared.

Another MPI library has its own Python: --python .venvs/intelmpi/bin/python.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from hvd_ext.cli import at_least
from testbed import ranks, timing

_MODULE = "benchmarks.yielding"
_SECONDS = 2.0
_ALONE = "no thread next to it"
# By how MPI_Get_library_version begins: the variable, and its values, the library's own first.
_WAYS = {
    "Open MPI": ("OMPI_MCA_mpi_yield_when_idle", ("0", "1")),
    "MPICH": ("MPIR_CVAR_POLLS_BEFORE_YIELD", ("1000", "1")),
    "MVAPICH2": ("MPIR_CVAR_POLLS_BEFORE_YIELD", ("1000", "1")),
    "Intel": ("I_MPI_THREAD_YIELD", ("-1", "2", "3")),
}


def main(arguments: Sequence[str]) -> int:
    """Launch the jobs, or be a rank of one."""
    parser = harness.parser("yielding", __doc__, "--json F", rounds=5)
    parser.add_argument("--np", type=at_least(2), default=2, help="ranks (2)")
    parser.add_argument("--python", default=sys.executable, metavar="PY", help="whose MPI (ours)")
    parser.add_argument("--alone", action="store_true", help="compute without a thread next to it")
    options = parser.parse_args(arguments)
    if options.worker:
        _work(not options.alone)
        return 0
    # Not resolved: an environment's python is a link, and what lies next to it counts.
    python = str(Path(options.python).absolute())
    result = _compare(options.np, options.rounds, python)
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _compare(size: int, rounds: int, python: str) -> dict[str, Any]:
    def job(words: Sequence[str], variables: dict[str, str]) -> dict[str, Any]:
        start = ranks.hvd_launch(size, python)
        told: dict[str, Any] = ranks.launch(_MODULE, size, words, 60, start, variables, python)
        return told

    mpi = job(["--alone"], {})["mpi"]
    known = [ways for name, ways in _WAYS.items() if mpi.startswith(name)]
    if not known:
        raise harness.BenchmarkError(f"{mpi}: what has it yield is known of {', '.join(_WAYS)}")
    variable, values = known[0]
    own = f"{variable}={values[0]}"
    ways: dict[str, dict[str, str]] = {_ALONE: {}}
    ways |= {f"{variable}={value}": {variable: value} for value in values}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, variables in ways.items():
            words = ["--alone"] if name == _ALONE else []
            rates[name].append(job(words, variables)["per_s"])
    return {
        "size": size,
        "mpi": mpi,
        "library_default": own,
        "ways": [
            {
                "name": name,
                "variables": ways[name],
                "per_s": timing.summary(values),
                # Rates, not times: the more the better.
                "ratio": timing.ratio(values, rates[own]),
            }
            for name, values in rates.items()
        ],
    }


def _print(result: dict[str, Any]) -> None:
    harness.print_table(
        f"computing next to a thread in MPI, {result['size']} ranks, {result['mpi']}",
        ("", "steps/s of all ranks", "middle half", "times as fast"),
        (
            (way["name"], *harness.times(way["per_s"], 0), f"{way['ratio']:.2f}")
            for way in result["ways"]
        ),
        width=100,
    )


def _work(meets: bool) -> None:
    from mpi4py import MPI

    from hvd_launch.backends.libraries import version_line
    from hvd_launch.doctor.yielding import computed_per_s

    world = MPI.COMM_WORLD
    per_s = computed_per_s(world, _SECONDS, meets)
    if world.rank == 0:
        ranks.report({"per_s": per_s, "mpi": version_line(MPI.Get_library_version())})


if __name__ == "__main__":
    harness.run(main, "yielding")
