"""Results from the answers of benchmarks.training_step's ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.harness import BenchmarkError
from testbed import timing

Answer = dict[str, Any]  # what a rank made of a turn, as benchmarks.training_step.worker gives it
Turns = Sequence[Sequence[Answer]]  # of a job; its ranks in any order

_APART = ("alone", "alone_together")
# Two backward passes a step: comparable with each other alone.
_PASSES = ("hvd_ext_two_passes", "hvd_ext_reproducible")
# They round what they send.
_ROUNDED = ("ddp_fp16", "ddp_hvd_ext_bf16")
# Gradients of more than two ranks may be added up in another order, and differ in their last bits.
# Training makes more of that with each step: ResNet-50's losses differ by 2e-6 in the second, and
# by 3e-2 in the fifth.
_COMPARED_STEPS, _COMPARED_OF_MANY, _TOLERANCE = 12, 2, 1e-3
_RATIOS = {
    "ratio_vs_horovod": ("horovod", "hvd_ext"),
    "ratio_vs_horovod_by_hand": ("horovod_by_hand", "hvd_ext"),
    "ratio_vs_ddp": ("ddp", "hvd_ext"),
    "ratio_vs_ddp_zero_sharded": ("ddp_zero", "hvd_ext_sharded"),
    "ratio_ddp": ("ddp", "ddp_hvd_ext"),
    "ratio_ddp_backend": ("ddp", "ddp_backend"),
    "ratio_ddp_16_bits": ("ddp_fp16", "ddp_hvd_ext_bf16"),
    "ratio_fsdp": ("fsdp", "fsdp_hvd_ext"),
    "audit_over_hvd_ext": ("hvd_ext_audit", "hvd_ext"),
    "audit_10_over_hvd_ext": ("hvd_ext_audit_10", "hvd_ext"),
    "reproducible_over_two_passes": ("hvd_ext_reproducible", "hvd_ext_two_passes"),
    "efficiency": ("alone", "hvd_ext"),
    "efficiency_sharded": ("alone", "hvd_ext_sharded"),
}


def of_arms(answers: Mapping[str, Turns]) -> dict[str, Any]:
    """The figures of a model's arms, and their ratios.

    Args:
        answers: of each arm; its first turn only warmed up.

    Raises:
        BenchmarkError: losses differ that should not.
    """
    losses = _compared_losses(answers)
    samples = {name: [step_times_ms(turn) for turn in turns[1:]] for name, turns in answers.items()}
    arms = {name: {**_of_arm(turns), **losses[name]} for name, turns in answers.items()}
    parameters = next(iter(answers.values()))[0][0]["parameters"]
    result: dict[str, Any] = {
        "parameters": len(parameters),
        "elements": sum(parameters),
        "arms": arms,
    }
    for name, pair in _RATIOS.items():
        if arms.keys() >= {*pair}:
            peer, ours = (samples[arm] for arm in pair)
            result[name] = timing.ratio(_flat(peer), _flat(ours))
            by_round = [timing.ratio(*turns) for turns in zip(peer, ours, strict=True)]
            result[f"{name}_of_rounds"] = timing.summary(by_round)
    if "alone" in arms:
        median_ms = {name: arm["step_ms"]["median"] for name, arm in arms.items()}
        result["overhead_ms"] = overhead_ms = {
            name: median_ms[name] - median_ms["alone"] for name in arms if name not in _APART
        }
        if overhead_ms.keys() >= {"horovod", "hvd_ext"}:
            result["overhead_ratio"] = overhead_ms["hvd_ext"] / overhead_ms["horovod"]
    if arms.keys() >= {"hvd_ext", "hvd_ext_sharded"}:
        for figure in ("memory", "optimizer_state"):
            ours, whole = (arms[n][f"{figure}_bytes"] for n in ("hvd_ext_sharded", "hvd_ext"))
            if whole:  # SGD without momentum keeps no state
                result[f"{figure}_ratio_sharded"] = ours / whole
    return result


def step_times_ms(turn: Sequence[Answer]) -> list[float]:
    """Times of the steps of a turn that ended while every rank was still at work."""
    until_s = min(answer["marks_s"][-1][-1] for answer in turn)
    times_ms = []
    for answer in turn:
        began_s = answer["began_s"]
        for *_, ended_s in answer["marks_s"]:
            if ended_s <= until_s:
                times_ms.append(1e3 * (ended_s - began_s))
            began_s = ended_s
    return times_ms


def _of_arm(turns: Turns) -> dict[str, Any]:
    timed = [answer for turn in turns[1:] for answer in turn]
    last = turns[-1]
    memory = max((answer["memory_bytes"] for answer in last), key=lambda of: sum(of.values()))
    return {
        "step_ms": timing.summary(_flat([step_times_ms(turn) for turn in turns[1:]])),
        "made_of": _made_of(timed),
        "memory_bytes": sum(memory.values()),
        **{f"memory_{kind}_bytes": value for kind, value in memory.items()},
        "optimizer_state_bytes": max(answer["optimizer_state_bytes"] for answer in last),
    }


def _made_of(answers: Sequence[Answer]) -> dict[str, Any]:
    """Parts of a rank's step: phases, by the median; CPU time of threads, on average."""
    phases_ms: dict[str, list[float]] = {"forward": [], "backward": [], "update": []}
    used: dict[str, dict[str, float]] = {}
    steps = sum(len(answer["marks_s"]) for answer in answers)
    for answer in answers:
        began_s = answer["began_s"]
        for marks_s in answer["marks_s"]:
            for phase, ended_s in zip(phases_ms, marks_s, strict=True):
                phases_ms[phase].append(1e3 * (ended_s - began_s))
                began_s = ended_s
        for thread, figures in answer["usage"].items():
            of_thread = used.setdefault(thread, {})
            for figure, value in figures.items():
                of_thread[figure] = of_thread.get(figure, 0) + value / steps
    return {
        "phases_ms": {phase: statistics.median(times) for phase, times in phases_ms.items()},
        "threads": used,
    }


def _compared_losses(answers: Mapping[str, Turns]) -> dict[str, dict[str, Any]]:
    """First and last loss of each arm, and whether those that exchange have the same ones."""
    losses = {name: _losses(turns) for name, turns in answers.items()}
    result: dict[str, dict[str, Any]] = {
        name: {"first_loss": of_ranks[0][0], "last_loss": of_ranks[0][-1]}
        for name, of_ranks in losses.items()
    }
    exchanging = [name for name in losses if name not in (*_APART, *_ROUNDED)]
    many = any(len(of_ranks) > 2 for of_ranks in losses.values())
    compared = _COMPARED_OF_MANY if many else _COMPARED_STEPS
    for name in exchanging:
        reference = next(one for one in exchanging if (one in _PASSES) == (name in _PASSES))
        if name == reference:
            continue
        # An arm that was tried before has taken more steps.
        pairs = [
            list(zip(*of_rank, strict=False))
            for of_rank in zip(losses[name], losses[reference], strict=True)
        ]
        worst = max(
            abs(ours - theirs) / abs(theirs)
            for of_rank in pairs
            for ours, theirs in of_rank[:compared]
        )
        if not worst < _TOLERANCE:
            raise BenchmarkError(
                f"{name} has other losses than {reference}: they differ by {worst:.2g} of their "
                f"value within {compared} steps"
            )
        result[name]["losses_equal_to_the_bit"] = all(
            ours == theirs for of_rank in pairs for ours, theirs in of_rank
        )
    return result


def _losses(turns: Turns) -> list[list[float]]:
    """Values of each rank, from the first step on."""
    return [a["losses"] for a in sorted(turns[-1], key=lambda answer: int(answer["rank"]))]


def _flat(samples: Iterable[Sequence[float]]) -> list[float]:
    return [sample for part in samples for sample in part]
