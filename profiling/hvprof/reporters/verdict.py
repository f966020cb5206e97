"""A recording's report in a few sentences, for the terminal, the page and JSON alike."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_ext.units import counted, format_seconds
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.causes.finding import in_background
from hvprof.analysis.causes.kinds import Kind
from hvprof.analysis.summary import of_horovod
from hvprof.model import RankRecording
from hvprof.reporters.run_verdict import run_sentences
from hvprof.reporters.text import operation_text

# Less than this share of the time is not worth a sentence.
_LITTLE = 0.02


def verdict(analysis: Analysis) -> str:
    """Describe communication's cost, the late rank, and the most promising change."""
    split, advices = analysis.wait_split, analysis.advice
    cause = analysis.cause
    if sentences := [*_of_steps(analysis)]:
        pass
    elif cause:
        sentences = [*run_sentences(cause, analysis.sites)]
        if cause.shortage is None and cause.kind not in (Kind.ONE_RANK, Kind.SHORT):
            sentences += _crowded(analysis.recording.ranks)
    elif in_background(analysis.recording):
        sentences = [*_in_background(analysis)]
    if split and split.time_s and (cause is None or analysis.shares.share_of == "steps"):
        about = "An estimated " if split.source == "estimate" else ""
        text = f"{about}{100 * split.wait_s / split.time_s:.0f} % of the time in collectives is"
        sentences.append(f"{text} waiting for late ranks, not moving data.")
    if advices:
        first, most = advices[0], ""
        if first.most_percent is not None:
            most = f": it saves at most {first.most_percent:.0f} % of the {first.share_of}"
        sentences.append(
            f"The most promising change is to {first.title[0].lower()}{first.title[1:]}{most}."
        )
    return " ".join(sentences) or "No traffic was recorded."


def _of_steps(analysis: Analysis) -> Iterator[str]:
    """Describe exposed communication, for programs that report it."""
    shares, parts = analysis.shares, analysis.step_parts
    total_s, blocked_s, slowed_s = shares.base_s, shares.exposed_s, shares.slowed_s
    if blocked_s is None or not total_s:
        return
    yield (
        f"Exposed communication takes {100 * blocked_s / total_s:.0f} % of the {shares.share_of}"
        f" ({format_seconds(blocked_s)} of {format_seconds(total_s)} a rank)."
    )
    if slowed_s is not None and slowed_s < _LITTLE * total_s:
        return
    if slowed_s is not None and parts:
        yield (
            f"Hidden communication is not free: its threads take {parts.communicating_cores:.1f} "
            f"of {counted(round(parts.cores), 'core')} of a host, and computing waits for them for "
            f"{100 * slowed_s / total_s:.0f} %."
        )
    elif parts and parts.slowed_s is None:
        yield (
            "Its CPU contention is unknown: the kernel does not count how long threads are queued."
        )


def _in_background(analysis: Analysis) -> Iterator[str]:
    """Exchanges on separate threads: while they run, the program need not wait for them."""
    rows, run_s = analysis.rows["data"], analysis.shares.base_s
    if not rows or not run_s:
        return
    data_s = sum(row.time_s for row in rows)
    first = rows[0]
    library = "hvd_ext's" if any(row.algorithm != "native" for row in rows) else "Horovod's"
    from_mpi = analysis.recording.source == "mpi"
    if not from_mpi or not of_horovod(analysis.rows["control"]):
        library = "the exchange's"
    shown = (
        "mark steps with hvprof.step() to see how much of it the program waits for"
        if from_mpi
        else "a timeline does not show how much of it the program waits for"
    )
    yield (
        f"{library[0].upper()}{library[1:]} threads exchange data for "
        f"{format_seconds(data_s)} a rank in a run of {format_seconds(run_s)}, most of it in "
        f"{operation_text(first)}; {shown}."
    )
    yield from _crowded(analysis.recording.ranks)


def _crowded(ranks: tuple[RankRecording, ...]) -> Iterator[str]:
    """Ranks that share cores wait for these, too."""
    hosts: dict[str, list[RankRecording]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank)
    for host, here in hosts.items():
        cores = max(rank.host_cores for rank in here)
        if 0 < cores < len(here):
            yield (
                f"{len(here)} ranks share {counted(cores, 'core')} of {host}: time in MPI includes "
                "waiting for a core."
            )
            return
