"""The predicted step with another exchange, on the terminal."""

from __future__ import annotations

from rich.console import Console

from hvd_ext.units import MB, format_bytes, format_seconds
from hvprof.analysis.replay.change import WhatIf
from hvprof.analysis.replay.network import ASSUMED, Line
from hvprof.analysis.replay.whatif import Replayed

# Bounds that are closer to each other than this are shown as one figure.
_SAME = 1.01


def render(found: Replayed, asked: WhatIf, console: Console) -> None:
    """Print the answer, and its basis."""
    for line in lines(found, asked):
        console.print(line, markup=False, highlight=False)


def lines(found: Replayed, asked: WhatIf) -> list[str]:
    """The answer in sentences."""
    network = found.network
    sentences = [
        f"A step would take {_range(found)} instead of {format_seconds(found.recorded_s)}"
        f" with {_what(asked)}: {_speedup(found)}.",
        f"The unchanged replay of {found.steps} steps is {100 * found.error:.2f} % off. An exchange"
        f" took {' to '.join(map(_took, network.lines))}, after all ranks had arrived.",
    ]
    if slowest := found.slowest:
        sentences.append(
            f"Rank {slowest.rank} is the slowest: it computes {format_seconds(slowest.own_s)} of a"
            f" step, the others {format_seconds(slowest.others_s)}."
        )
    if found.slowed_s:
        sentences.append(
            f"This includes {format_seconds(found.slowed_s)} of CPU contention with threads that"
            " communicate, and all waiting for late ranks: both would be gone."
        )
    if asked.exchange and not found.knows_ready:
        sentences.append(
            "It is not known when gradients were ready while an exchange was under way: at the"
            " earliest with those before them, at the latest when their exchange began."
            " hvd_ext's optimizer records it."
        )
    if asked.exchange and len(network.lines) > 1:
        why = (
            "All exchanges have about one length"
            if network.one_length
            else "The times of exchanges do not depend on their lengths"
        )
        sentences.append(
            f"{why}, so latency and bandwidth cannot be separated: the answer ranges from all "
            "bandwidth"
            " to as much latency as possible."
        )
    if asked.algorithm is not None:
        sentences.append(
            f"An exchange that does not name its algorithm is taken to be a {ASSUMED}."
        )
    return sentences


def _took(line: Line) -> str:
    return f"{format_seconds(line.latency_s)} and {format_seconds(line.byte_s * MB)} a MB more"


def _what(asked: WhatIf) -> str:
    parts = []
    if not asked.exchange:
        parts.append("no exchange")
    if asked.without_slowest:
        parts.append("the slowest rank as fast as the others")
    if asked.bandwidth != 1:
        parts.append(f"{asked.bandwidth:g} x the bandwidth")
    if asked.latency_s is not None:
        parts.append(f"a latency of {format_seconds(asked.latency_s)}")
    elif asked.latency != 1:
        parts.append(f"{asked.latency:g} x the latency")
    if asked.algorithm is not None:
        parts.append(f"the algorithm {asked.algorithm}")
    if asked.bucket_bytes is not None:
        parts.append(f"buckets of {format_bytes(asked.bucket_bytes)}")
    return " and ".join(parts)


def _range(found: Replayed) -> str:
    if found.high_s < found.low_s * _SAME:
        return format_seconds((found.low_s + found.high_s) / 2)
    return f"{format_seconds(found.low_s)} to {format_seconds(found.high_s)}"


def _speedup(found: Replayed) -> str:
    low, high = found.speedup
    if high < low * _SAME:
        return f"{(low + high) / 2:.2f} x as fast"
    return f"{low:.2f} to {high:.2f} x as fast"
