"""A recording's report in a few sentences, for the terminal, the page and JSON alike."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_ext.units import format_seconds
from hvprof.analysis.analysis import Analysis
from hvprof.model import RankRecording
from hvprof.reporters.text import operation_text

# A rank is named that takes so many times as long outside of MPI as the others, and at least
# this share of the run longer.
_UNEVEN, _LEAST_SHARE = 1.1, 0.02


def verdict(analysis: Analysis) -> str:
    """Say what communication costs, which rank is waited for, and the most promising change."""
    split, advices = analysis.wait_split, analysis.advice
    sentences = [*_of_steps(analysis)] or [*_of_a_run(analysis)]
    if split and split.time_s:
        about = "An estimated " if split.source == "estimate" else ""
        text = f"{about}{100 * split.wait_s / split.time_s:.0f} % of the time in collectives is"
        sentences.append(f"{text} waiting for late ranks, not moving data.")
    if advices and advices[0].most_percent is not None:
        first = advices[0]
        sentences.append(
            f"The most promising change is to {first.title[0].lower()}{first.title[1:]}: it saves "
            f"at most {first.most_percent:.0f} % of the {first.share_of}."
        )
    return " ".join(sentences) or "No traffic was recorded."


def _of_steps(analysis: Analysis) -> Iterator[str]:
    """Where a program says what it is blocked on: the exposed communication."""
    shares, parts = analysis.shares, analysis.step_parts
    total_s, blocked_s, slowed_s = shares.base_s, shares.exposed_s, shares.slowed_s
    if blocked_s is None or not total_s:
        return
    yield (
        f"Exposed communication takes {100 * blocked_s / total_s:.0f} % of the {shares.share_of}"
        f" ({format_seconds(blocked_s)} of {format_seconds(total_s)} a rank)."
    )
    if slowed_s is not None and parts:
        yield (
            "Hidden communication is not free: its threads take "
            f"{parts.communicating_cores:.1f} of {parts.cores:.0f} cores of a host, and computing "
            f"waits for them for {100 * slowed_s / total_s:.0f} %."
        )
    elif parts and parts.slowed_s is None:
        yield (
            "Its CPU contention is unknown: the kernel does not count how long threads are queued."
        )


def _of_a_run(analysis: Analysis) -> Iterator[str]:
    """Any other program: its time in communication, and the rank that computes longest."""
    recording, rows = analysis.recording, analysis.rows["data"]
    run_s = analysis.shares.base_s
    if not run_s or not rows:
        return
    data_s = sum(row.time_s for row in rows)
    by_operation: dict[str, float] = {}
    for row in rows:
        name = operation_text(row)
        by_operation[name] = by_operation.get(name, 0.0) + row.time_s
    largest = max(by_operation, key=by_operation.__getitem__)
    spent = f"{format_seconds(data_s)} a rank"
    if any(_inside_s(rank) > _run_s(rank) > 0 for rank in recording.ranks):
        yield (
            f"Communication takes {spent}, summed over the threads of a rank, in a run of "
            f"{format_seconds(run_s)}."
        )
    else:
        yield (
            f"Communication takes {100 * data_s / run_s:.0f} % of the run ({spent} of "
            f"{format_seconds(run_s)}); the largest part is {largest} "
            f"({format_seconds(by_operation[largest])})."
        )
        # Threads of Horovod's call MPI: while they do not, the program need not compute.
        if not analysis.rows["control"]:
            yield from _uneven(recording.ranks, run_s)
    yield from _crowded(recording.ranks)


def _uneven(ranks: tuple[RankRecording, ...], run_s: float) -> Iterator[str]:
    """A rank that waited itself spent that time within MPI, so it is not blamed."""
    outside = {rank.rank: _run_s(rank) - _inside_s(rank) for rank in ranks if _run_s(rank)}
    if len(outside) < 2:
        return
    late = max(outside, key=outside.__getitem__)
    others_s = (sum(outside.values()) - outside[late]) / (len(outside) - 1)
    longer_s = outside[late] - others_s
    if outside[late] > _UNEVEN * others_s and longer_s > _LEAST_SHARE * run_s:
        mean = "" if len(outside) == 2 else " on average"
        yield (
            f"Rank {late} spends {format_seconds(outside[late])} outside of MPI and the others "
            f"{format_seconds(others_s)}{mean}: they wait for it."
        )


def _crowded(ranks: tuple[RankRecording, ...]) -> Iterator[str]:
    """Ranks that share cores wait for these, too."""
    hosts: dict[str, list[RankRecording]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank)
    for host, here in hosts.items():
        cores = max(rank.host_cores for rank in here)
        if 0 < cores < len(here):
            yield (
                f"{len(here)} ranks share {cores} cores of {host}: time in MPI includes waiting "
                "for a core."
            )
            return


def _inside_s(rank: RankRecording) -> float:
    return sum(cell.time_s for cell in rank.cells if cell.traffic == "data")


def _run_s(rank: RankRecording) -> float:
    return rank.end_unix_s - rank.start_unix_s if rank.end_unix_s else 0.0
