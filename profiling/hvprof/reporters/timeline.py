"""Words for the profiled steps that the terminal and the page share, and the steps they show."""

from __future__ import annotations

from hvd_ext.units import counted, format_seconds
from hvprof.analysis.timeline import COMPUTE, UPDATE, StepTimeline, StepTimelines

_MOST_RANKS = 8
# The parts that hide others.
ALONE = (COMPUTE, UPDATE)

NOTE = (
    "halo: halo exchanges and messages of MPI; allreduce: all collectives; copies: to, from and "
    "between GPUs. Times are of a step, in which any of a part ran. Hidden: while compute or the "
    "optimizer ran. Idle: nothing ran."
)


def title(found: StepTimelines) -> str:
    """The table's heading: which steps of how many ranks, and on which device."""
    what = "kernels of GPUs" if found.on_gpu else "operators of CPUs, as no GPU was used"
    steps = sorted({step.step for step in found.steps})
    named = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    ranks = counted(len(found.by_rank), "rank")
    return f"Timeline: {named} of {ranks}, by torch.profiler ({what})"


def shown_ranks(found: StepTimelines) -> list[tuple[str, StepTimeline]]:
    """The mean and the ranks; if there are many, only those that were idle longest."""
    ranks = sorted(found.by_rank, key=lambda step: -step.idle_s)[:_MOST_RANKS]
    named = [(str(step.rank), step) for step in sorted(ranks, key=lambda step: step.rank)]
    return [("mean", found.mean), *named] if len(found.by_rank) > 1 else named


def overlaps_text(found: StepTimelines) -> str:
    """Parts that ran at once, as a mean over steps and ranks."""
    longest = sorted(found.mean.overlaps.items(), key=lambda one: -one[1])
    return ", ".join(f"{pair} {format_seconds(time_s)}" for pair, time_s in longest)


def example_steps(found: StepTimelines, most: int) -> list[StepTimeline]:
    """The step of median time of each of the first ranks."""
    examples = []
    for rank in [mean.rank for mean in found.by_rank][:most]:
        steps = sorted((s for s in found.steps if s.rank == rank), key=lambda step: step.time_s)
        examples.append(steps[(len(steps) - 1) // 2])
    return examples
