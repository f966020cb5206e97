"""The rules of advice, and the evidence that each of them needs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hvd_ext.units import MIB, format_bytes, format_seconds
from hvprof.analysis.advice.case import Advice, Case
from hvprof.analysis.advice.commands import over_hvd_ext
from hvprof.analysis.advice.of_cause import of_cause, of_conditions
from hvprof.analysis.causes.kinds import Kind
from hvprof.analysis.findings import Findings
from hvprof.analysis.waiting.slowness import paces, reason

_SMALL = ("<1 KB", "1-128 KB")
_SLOW = 0.6
# Shares of float32's bytes, for bf16 and for int8.
_COMPRESSED, _INT8 = 0.75, 0.254
_TRACE = "100000"
# The variable that the advice on buckets sets.
_SMALL_BUCKET = MIB


def advise(findings: Findings) -> list[Advice]:
    """Return all advice that the findings support: on the cause first, then by its gain."""
    case = Case(findings)
    found = [advice for rule in _RULES for advice in rule(case)]
    return [*of_cause(case), *sorted(found, key=lambda advice: -(advice.most_s or 0))]


def _small_messages(case: Case) -> Iterator[Advice]:
    small = [row for row in case.allreduce if row.message_size in _SMALL]
    large = [row for row in case.allreduce if row.message_size not in _SMALL]
    lost_s = sum(row.time_s - case.at_best_s(row) for row in small)
    calls = sum(row.calls for row in small) // len(case.recording.ranks)
    # hvd_ext cuts its buckets by the measured cost of a call.
    if not calls or not large or not case.control or case.uses_hvd_ext:
        return
    yield from case.advice(
        "Fuse small gradients into larger messages",
        f"{calls} allreduce calls of at most 128 KB take {case.share(lost_s)} more than the same "
        "bytes at the best bandwidth seen here.",
        "HOROVOD_CYCLE_TIME (ms between fusions, 1 by default) and HOROVOD_FUSION_THRESHOLD "
        "(bytes, 128 MiB by default)",
        lost_s,
        case.again("cycle5", "HOROVOD_CYCLE_TIME=5"),
    )


def _one_by_one(case: Case) -> Iterator[Advice]:
    """Advise a program that makes an allreduce for each of its tensors."""
    if not case.sends_one_by_one or case.exposed_s is None:
        return
    each_step = case.allreduces_a_step
    yield from case.advice(
        "Fuse small messages into larger ones",
        f"{each_step:.0f} calls of allreduce a step have {format_bytes(round(case.mean_bytes))} "
        f"each; the program was blocked for {case.share_of_steps(case.exposed_s)}.",
        "DistributedDataParallel or hvd_ext.c10d.attach(model), whose buckets hold many tensors; "
        "or one call for a flat tensor",
        case.exposed_s * (1 - 1 / each_step),
        case.again("fused"),
    )


def _negotiation(case: Case) -> Iterator[Advice]:
    if not case.control or case.exposed_s is None or case.uses_hvd_ext:
        return
    calls = sum(row.calls for row in case.control) // len(case.recording.ranks)
    yield from case.advice(
        "Reduce gradients without negotiation",
        f"Horovod's coordination took {calls} calls and {case.share(case.control_s)}; gradients "
        f"wait for it. The training thread was blocked for {case.share_of_steps(case.exposed_s)}.",
        "hvd_ext's DistributedOptimizer, which reduces in a fixed order; or HOROVOD_CYCLE_TIME",
        case.control_s,
        case.again("hvd_ext", change=over_hvd_ext),
    )


def _contention(case: Case) -> Iterator[Advice]:
    if not case.slowed_s or case.parts is None:
        return
    who = "hvd_ext's exchange" if case.uses_hvd_ext else "Communication"
    if case.control and not case.uses_hvd_ext:
        who = "Horovod's thread"
    parts = case.parts
    evidence = (
        f"{who} takes {parts.communicating_cores:.1f} of the {parts.cores:.0f} cores of a host; "
        f"the training thread waited for a core for "
        f"{case.share_of_steps(case.slowed_s)}."
    )
    yields = case.library.yields if case.library else None
    if case.library and yields and not any(rank.yields for rank in case.recording.ranks):
        variable = "=".join(yields)
        yield from case.advice(
            "Let threads that wait for MPI yield their core",
            evidence,
            f"{variable}: {case.library.title} spins otherwise; hvd_ext sets it",
            case.slowed_s,
            case.again("yield", variable),
        )
        return
    yield from case.advice(
        "Leave a core to communication",
        evidence,
        "fewer threads that compute (OMP_NUM_THREADS), or fewer ranks on a host",
        case.slowed_s,
        case.again("thread", "OMP_NUM_THREADS=1"),
    )


def _unhidden(case: Case) -> Iterator[Advice]:
    steps = case.recording.all_steps
    overlap = steps.overlap_percent if steps else None
    # Messages of single tensors cannot be hidden before they are fused.
    if steps is None or overlap is None or overlap >= 50 or case.sends_one_by_one:
        return
    blocked = case.share_of_steps(steps.exposed_s)
    late = _late_rank(case)
    # The update needs the last gradients, however early an exchange starts.
    waiting_s = min(late[1], steps.exposed_s) if late else 0.0
    waits = f"; {format_seconds(waiting_s)} of it waits for rank {late[0]}" if late else ""
    title = "Hide communication behind backward"
    if case.uses_torch:
        setting = "hvd_ext.c10d.attach(model), whose buckets lie in the node's memory"
        if case.largest_bytes > _SMALL_BUCKET:
            setting += "; or smaller buckets, which start earlier: DDP's bucket_cap_mb"
        command = case.again("attached")
    elif case.uses_hvd_ext:
        if case.largest_bytes <= _SMALL_BUCKET:
            return
        setting = "HVD_EXT_BUCKET_BYTES: smaller buckets start earlier"
        command = case.again("bucket1", "HVD_EXT_BUCKET_BYTES=1MiB")
    elif case.uses_horovod:
        setting = (
            "hvd_ext's DistributedOptimizer: a bucket is reduced once its last gradient is there"
        )
        command = case.again("hvd_ext", change=over_hvd_ext)
    else:
        title = "Overlap communication with computation"
        setting = "nonblocking calls (MPI_Iallreduce, MPI_Isend), computing before MPI_Wait"
        command = case.again("overlapped")
    yield from case.advice(
        title,
        f"{overlap:.0f} % of the communication is hidden; {blocked} is not{waits}.",
        setting,
        min(steps.exposed_s - waiting_s, steps.time_s - steps.exposed_s),
        command,
    )


def _whole_gradients(case: Case) -> Iterator[Advice]:
    if case.wire is None or case.exposed_s is None or case.wire.ratio < _COMPRESSED:
        return
    yield from case.advice(
        "Send gradients in fewer bytes between hosts",
        f"{format_bytes(round(case.wire.wire_bytes))} left the hosts, uncompressed; "
        f"the training thread was blocked for {case.share_of_steps(case.exposed_s)}.",
        "HVD_EXT_COMPRESSION, or compression=: auto uses bf16 or int8 where it measures a speedup; "
        "both round",
        (1 - _INT8) * case.exposed_s,
        case.again("compressed", "HVD_EXT_COMPRESSION=auto"),
    )


def _late_rank(case: Case) -> tuple[int, float] | None:
    """Return the rank that causes most waiting, and how long other ranks waited for it."""
    split = case.split
    if split is None or not split.waited_for or split.wait_s < 0.2 * split.time_s:
        return None
    rank, waited_s = split.waited_for[0]
    total_s = sum(time_s for _, time_s in split.waited_for)
    # Ranks that are late alternately are not stragglers.
    even = 2 / len(case.recording.ranks) if len(case.recording.ranks) > 2 else 0.7
    return (rank, waited_s) if total_s and waited_s / total_s >= min(even, 0.7) else None


def _straggler(case: Case) -> Iterator[Advice]:
    split, late = case.split, _late_rank(case)
    # Without steps, the cause names the late ranks: a rank that waited itself is late because of
    # that.
    if split is None or late is None or (case.cause and not case.recording.all_steps):
        return
    rank, waited_s = late
    total_s = sum(time_s for _, time_s in split.waited_for)
    host = next(one.host for one in case.recording.ranks if one.rank == rank)
    about = "an estimated " if split.source == "estimate" else ""
    traced = split.source == "trace"
    directory = str(case.recording.directory)
    again = ["hvprof", "record", "-o", f"{directory}-trace", "--trace", _TRACE, "--"]
    why = reason(rank, paces(case.recording), case.conditions)
    # The mean over all ranks includes the late one, which does not wait.
    each_s = waited_s * len(case.recording.ranks) / (len(case.recording.ranks) - 1)
    yield from case.advice(
        f"Find what delays rank {rank} on {host}",
        f"The other ranks wait for it {about}{case.share(each_s)} each: "
        f"{100 * waited_s / total_s:.0f} % of all waiting{f'; {why.does}' if why else ''}.",
        why.look if why else "its host, its cores (binding), its share of the data",
        each_s,
        shlex.join(["hvprof", "report", directory, "--trace", "trace.json"])
        if traced
        else shlex.join([*again, *(case.recording.command or ["COMMAND"])]),
    )


def _slow_rows(case: Case) -> Iterator[Advice]:
    slow = [
        row
        for row in case.allreduce
        if row.message_size not in _SMALL
        and row.busbw_gb_s is not None
        and row.busbw_gb_s < _SLOW * case.best_gb_s
    ]
    # If ranks wait, a bandwidth says nothing about an algorithm.
    waits = case.cause and case.cause.kind is not Kind.TRANSFER and not case.recording.all_steps
    if not slow or waits:
        return
    worst = max(slow, key=lambda row: row.time_s - case.at_best_s(row))
    lost_s = worst.time_s - case.at_best_s(worst)
    setting = "the rules that hvd-launch tune allreduce measures"
    command = f"hvd-launch tune allreduce -np {case.recording.size} -o tuning"
    if case.uses_torch:
        setting = 'the backend hvd_ext: init_process_group("hvd_ext")'
        command = case.again("hvd_ext")
    elif case.library:
        variables = case.library.allreduce
        setting = (
            f"{' '.join(variables)}; or {setting.replace('the MPI library', case.library.title)}"
        )
        command = case.again("algorithm", *variables)
    yield from case.advice(
        f"Choose another algorithm for {worst.message_size}",
        f"{worst.algorithm} reaches {worst.busbw_gb_s:.2g} GB/s there (busbw), the best row "
        f"{case.best_gb_s:.2g}; the difference is {case.share(lost_s)}. Waiting counts in both.",
        setting,
        lost_s,
        command,
    )


def _registration(case: Case) -> Iterator[Advice]:
    caches = [rank.registration_cache for rank in case.recording.ranks]
    # The settings below are the MPI library's, and have no effect on hvd_ext's own handles.
    of_mpi = [cache for cache in caches if cache and cache.source.startswith("MPI_T")]
    known = [cache for cache in of_mpi if cache.hits + cache.misses]
    hits, lookups = sum(c.hits for c in known), sum(c.hits + c.misses for c in known)
    if not known or hits >= 0.9 * lookups:
        return
    large_s = sum(row.time_s for row in case.allreduce if row.message_size not in _SMALL)
    yield from case.advice(
        "Keep sent memory registered",
        f"{100 * hits / lookups:.0f} % of {lookups} look-ups hit ({known[0].source}); messages "
        f"above 128 KB take {case.share(large_s)}.",
        "MV2_USE_LAZY_MEM_UNREGISTER=1 and MV2_NDREG_ENTRIES_MAX; the arena of hvd_ext, whose "
        "addresses never change",
        large_s,
        case.again("regcache", "MV2_USE_LAZY_MEM_UNREGISTER=1"),
    )


def _input(case: Case) -> Iterator[Advice]:
    steps = case.recording.all_steps
    if steps is None or not steps.time_s:
        return
    percent = 100 * steps.io_s / steps.time_s
    if percent >= 5:
        yield Advice(
            "Prefetch data",
            f"Steps wait for data for {case.share_of_steps(steps.io_s)}.",
            "more loader workers, packed files, samples kept in memory",
            steps.io_s,
            percent,
            case.share_of,
            case.again("loader"),
        )


_RULES = (
    of_conditions,
    _small_messages,
    _one_by_one,
    _negotiation,
    _contention,
    _unhidden,
    _whole_gradients,
    _straggler,
    _slow_rows,
    _registration,
    _input,
)
