"""What does it take to sum one short torch tensor over all ranks? Horovod, MPI, hvd_ext.

Horovod is `allreduce_`, which negotiates each tensor in its background thread's next
cycle (1 ms by default). hvd_ext is `plan_allreduce`, called again and again, and
`hvd_ext.allreduce.persistent.allreduce`, which is not planned; MPI is mpi4py's call on the
same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.harness import gradients
from hvd_ext.cli import at_least
from hvd_ext.units import format_bytes
from testbed import ranks, timing

_SIZES = (4, 64, 1024, 4096, 16384, 65536)
_JUDGED = 1024
# Ranks part from a barrier at times that differ by more than a call takes.
_CALLS = {"horovod": 10, "mpi": 300, "planned": 300, "once": 300}


def main(arguments: Sequence[str]) -> int:
    """Launch the ranks, or be one."""
    parser = harness.parser("small_tensors", __doc__, "--json F", rounds=40)
    parser.add_argument("--np", type=at_least(1), default=2, help="ranks (2)")
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options.rounds)
        return 0
    result = ranks.launch("benchmarks.small_tensors", options.np, ["--rounds", str(options.rounds)])
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _print(result: dict[str, Any]) -> None:
    rows = []
    for row in result["sizes"]:
        times = (f"{row['time_us'][name]['median']:.2f}" for name in _CALLS)
        rows.append(
            (format_bytes(row["message_bytes"]), *times, f"{row['ratio_vs_horovod']:.0f} x")
        )
    console = harness.print_table(
        f"one float32 tensor summed over {result['size']} ranks, us",
        ("message", *_CALLS, "Horovod / planned"),
        rows,
        left=0,
    )
    console.print(
        f"a call that is not planned adds {result['once_adds_us']:.2f} us to MPI's own at most"
    )


def _work(rounds: int) -> None:
    import torch
    from mpi4py import MPI

    import hvd_ext.torch as hvd
    from hvd_ext.allreduce.persistent import allreduce
    from hvd_ext.torch.job import lifecycle

    torch.set_num_threads(1)
    follows = gradients.start()
    topology = lifecycle.topology()
    sizes: list[dict[str, Any]] = []
    for message_bytes in _SIZES:
        tensor = torch.zeros(message_bytes // 4)
        array = tensor.numpy()
        name = f"tensor of {message_bytes}"

        def with_horovod(tensor: Any = tensor, name: str = name) -> None:
            hvd.allreduce_(tensor, name=name, op=hvd.Sum)

        def with_mpi(array: Any = array) -> None:
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)

        def once(array: Any = array) -> None:
            allreduce(topology, array)

        calls: dict[str, Callable[[], None]] = {
            "horovod": with_horovod,
            "mpi": with_mpi,
            "planned": hvd.plan_allreduce(tensor, hvd.Sum),
            "once": once,
        }
        for name, call in calls.items():
            gradients.check(name, gradients.Contender([tensor], call, sums=True))
            tensor.zero_()
        repeated = {name: _repeated(call, _CALLS[name]) for name, call in calls.items()}
        if follows:
            repeated = {
                name: gradients.with_thread_idle(name != "horovod", call)
                for name, call in repeated.items()
            }
        samples = timing.interleave(repeated, rounds, gradients.timed)
        times_us = {n: [1e6 * t / _CALLS[n] for t in times] for n, times in samples.items()}
        sizes.append(
            {
                "message_bytes": message_bytes,
                "ratio_vs_horovod": timing.ratio(times_us["horovod"], times_us["planned"]),
                "time_us": {n: timing.summary(times) for n, times in times_us.items()},
            }
        )
    if hvd.rank() == 0:
        ranks.report(
            {
                "size": hvd.size(),
                "sizes": sizes,
                "ratio_vs_horovod": next(
                    row["ratio_vs_horovod"] for row in sizes if row["message_bytes"] == _JUDGED
                ),
                "once_adds_us": max(
                    row["time_us"]["once"]["median"] - row["time_us"]["mpi"]["median"]
                    for row in sizes
                ),
                "mpi": MPI.Get_library_version().split(",")[0],
            }
        )
    hvd.shutdown()


def _repeated(call: Callable[[], None], times: int) -> Callable[[], None]:
    def run_all() -> None:
        for _ in range(times):
            call()

    return run_all


if __name__ == "__main__":
    harness.run(main, "small_tensors")
