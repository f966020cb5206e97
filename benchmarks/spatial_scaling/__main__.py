"""What does it gain to share one sample among ranks? Time and memory of training steps.

Each case is a network trained on one sample, by ranks of one thread each. Efficiency is
the step of one rank alone over n times the step of n ranks that share the sample; both
are timed in one run, interleaved, after a check that their losses agree. `busy` is the same
with each rank on its own sample in place of one rank alone: its excess over the efficiency
is contention that ranks have without a split (caches, memory, clock speed).
`alike` is the same with one rank alone that computes with the layers of split models: they
take other kernels than torch's where those are faster, which is not splitting's doing.

Memory is the peak of a fresh process over what it held with model, gradients and
optimizer in place, which every rank has whole, but in `cosmoflow_filters`, where ranks
share those of CosmoFlow's deep layers; `..._with_parameters` is over what it held before.

torch's DTensor splits convolutions along the width, for a stride of 1. It takes part
where it can do the case and gets it right; where not, the JSON says what it said. The
last two columns of the table say how many times as long those take.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks import harness
from benchmarks.spatial_scaling.cases import CASES
from benchmarks.spatial_scaling.worker import peak_memory, step_times
from hvd_ext.cli import at_least
from hvd_ext.units import format_bytes
from testbed import ranks, timing

_MODULE = "benchmarks.spatial_scaling"
# Freed tensors go back to the system at once, so that the peak is of what is held; by
# default glibc keeps blocks of up to 32 MiB, which splitting makes of larger ones.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}


def main(arguments: Sequence[str]) -> int:
    """Launch the ranks, or be one."""
    parser = harness.parser("spatial_scaling", __doc__, "--case mesh --json F", rounds=5)
    parser.add_argument("--np", type=at_least(1), default=2, help="ranks that share a sample (2)")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        (case,) = options.case
        _report(peak_memory(case) if options.memory else step_times(case, options.rounds))
        return 0
    results = [_case(name, options.np, options.rounds) for name in options.case or CASES]
    _print(results)
    if options.json:
        harness.write_result(options.json, {"size": options.np, "cases": results})
    return 0


def _report(result: Any) -> None:
    """Give rank 0's result to the launcher, and end."""
    import hvd_ext.torch as hvd

    if hvd.rank() == 0:
        ranks.report(result)
    hvd.shutdown()


def _case(name: str, size: int, rounds: int) -> dict[str, Any]:
    arguments = ["--case", name, "--rounds", str(rounds)]
    timed = ranks.launch(_MODULE, size, arguments, timeout_s=3000)
    alone, shared = (
        ranks.launch(_MODULE, number, [*arguments, "--memory"], timeout_s=600, variables=_MALLOC)
        for number in (1, size)
    )
    samples = timed.pop("samples_s")
    split = samples["split"]
    result = {
        "name": name,
        "ranks": size,
        **timed,
        "time_s": {way: timing.summary(times) for way, times in samples.items()},
        "efficiency": timing.ratio(samples["alone"], split) / size,
        "efficiency_spread": sorted(
            one / two / size for one, two in zip(samples["alone"], split, strict=True)
        ),
        "efficiency_busy": timing.ratio(samples["busy"], split) / size,
        "efficiency_alike": timing.ratio(samples["converted"], split) / size,
        "ratio_vs_no_overlap": timing.ratio(samples["no_overlap"], split),
        "peak_memory_bytes": {"alone": alone["peak"], "split": shared["peak"]},
        "peak_memory_ratio": shared["peak"] / alone["peak"],
        "peak_memory_ratio_with_parameters": shared["whole_peak"] / alone["whole_peak"],
    }
    if "dtensor" in samples:
        result["ratio_vs_dtensor"] = timing.ratio(samples["dtensor"], split)
    return result


def _print(results: list[dict[str, Any]]) -> None:
    figures = ("efficiency", "busy", "alike", "peak memory", "no overlap", "DTensor")
    rows = []
    for result in results:
        peak = result["peak_memory_bytes"]
        dtensor = result.get("ratio_vs_dtensor")
        rows.append(
            (
                result["name"],
                str(result["ranks"]),
                f"{result['time_s']['alone']['median']:.3f}",
                f"{result['time_s']['split']['median']:.3f}",
                f"{result['efficiency']:.3f}",
                f"{result['efficiency_busy']:.3f}",
                f"{result['efficiency_alike']:.3f}",
                f"{result['peak_memory_ratio']:.2f} x {format_bytes(peak['alone'])}",
                f"{result['ratio_vs_no_overlap']:.2f} x",
                f"{dtensor:.2f} x" if dtensor else "cannot",
            )
        )
    columns = ("case", "ranks", "alone s", "shared s", *figures)
    harness.print_table("one sample, shared by ranks of one thread each", columns, rows)


if __name__ == "__main__":
    harness.run(main, "spatial_scaling")
