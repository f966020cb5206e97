"""Does hvprof notice a job that hangs, name the right rank and the right cause, and no other job?

Each case is a job under `hvprof record --on-hang`. Where that reports a hang, the ranks' files are
read as `hvprof hang` reads them, and compared with what was injected. Healthy jobs wait too, for
less than the limit. A rank that is slow hangs nothing; `hvprof watch` and the report are to name
it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks import harness
from benchmarks.diagnosis.jobs import HOSTS, job_with, limit_s
from benchmarks.diagnosis.slow import EVEN, HELD_BACK, SLOW_RANK, SLOWED, Verdict, verdict
from benchmarks.diagnosis.worker import (
    FAULTS,
    HEALTHY,
    LINKS,
    LOSSY_LINK,
    ON_HOSTS,
    SLOW_LINK,
    STEPS,
    served,
    work,
)
from hvd_ext.cli import at_least, progress
from hvd_ext.errors import HvdExtError, UsageError
from hvprof.commands.running.hang import explained
from hvprof.live.cause import Cause

_PATIENCE_S = 300.0
_WHERE_MPI = ("allreduce", "barrier", "wait", "calls", "steps")
_WHERE = (*_WHERE_MPI, "torch", "horovod", "hvd_ext", *ON_HOSTS)
_LAST, _ALL = -1, -2
# By fault: kinds that are right, and the rank to look at.
_RIGHT: dict[str, tuple[set[str], int]] = {
    "sleeps": ({"late"}, _LAST),
    "is stopped": ({"stopped"}, 1),
    "is killed": ({"gone"}, 1),
    "raises": ({"mismatch", "finalized", "gone"}, 1),
    "loops in Python": ({"late"}, 1),
    "loops in C": ({"late"}, 1),
    "reads a slow file": ({"late", "disk"}, 1),
    "calls another operation": ({"mismatch"}, 1),
    "calls on another communicator": ({"deadlock"}, 1),
    "receives in a circle": ({"deadlock"}, _ALL),
    "waits for a chain": ({"late"}, _LAST),
    "leaves": ({"mismatch", "finalized"}, 1),
    "faults memory": ({"late"}, 1),
    "does not submit a tensor": ({"late"}, 1),
    "waits for another tensor": ({"deadlock"}, _ALL),
    "leaves gradients out": ({"late"}, 1),
    "receives from any rank": ({"any_source"}, _ALL),
    "is stopped before a fence": ({"stopped"}, 1),
    "is probed for": ({"late"}, 1),
    "is tested for": ({"late"}, 1),
    "sends another tag": ({"deadlock"}, 1),
    "reads an empty pipe": ({"late"}, 1),
    "waits for a worker process": ({"late"}, 1),
    "does not open a file": ({"late"}, 1),
    "does not duplicate a communicator": ({"late"}, 1),
    "does not receive": ({"late"}, 1),
    **dict.fromkeys(LINKS, ({"link"}, _LAST)),
}
# By what slows steps: the kind of verdict that is right, and the rank.
_SLOWS = {
    SLOWED: ("core", SLOW_RANK),
    HELD_BACK: ("quota", SLOW_RANK),
    SLOW_LINK: ("link", HOSTS - 1),
    LOSSY_LINK: ("link", HOSTS - 1),
}
# What the sentence has to say, besides.
_SAID = {
    "does not submit a tensor": "allreduce of 'layer2.weight'",
    "waits for another tensor": "allreduce of 'a'",
    "leaves gradients out": "hvd_ext's gradient exchange, bucket ",
    "sends another tag": "tag 7",
    "reads an empty pipe": "sleeps in read of pipe",
    "waits for a worker process": r"waits for its worker process \d+ at calls.py:\d+",
    "does not open a file": "File_open",
    "does not duplicate a communicator": "Comm_dup",
    "has a slow link": "the link .*host3 delivers ",
    "has a link without a carrier": "the link of host3 has no carrier",
    "has a link that loses packets": "the link .*host3 .* loses packets",
}


@dataclass(frozen=True)
class Case:
    """A job, and what became of it.

    Attributes:
        fault: what was injected; of a healthy job, its pattern.
        ranks: of the job.
        where: the collective in which ranks waited.
        noticed_s: from the fault to the report, less the limit; of a slow rank, from the fault to
            the reading that names it; None: neither.
        kind, sentence: of the first cause; "" without one.
        right_rank, right_cause: whether they are those injected; of a healthy job, True where there
            was no report.
    """

    fault: str
    ranks: int
    where: str
    noticed_s: float | None
    kind: str
    sentence: str
    right_rank: bool
    right_cause: bool


def main(arguments: Sequence[str]) -> int:
    """Run all cases, or be a rank of one."""
    parser = harness.parser("diagnosis", __doc__, "--json F")
    parser.add_argument(
        "--np", type=at_least(2), nargs="+", default=[2, 4], metavar="N", help="ranks (2 4)"
    )
    parser.add_argument("--fault", action="append", metavar="NAME", help="only this one (all)")
    parser.add_argument(
        "--at-once", type=at_least(1), default=2, metavar="J", help="jobs at once (2)"
    )
    parser.add_argument(
        "--where",
        choices=_WHERE,
        action="append",
        metavar="HOW",
        help="only where ranks wait so: in MPI's Allreduce, Barrier or Wait, in its other calls, "
        "in all_reduce of torch.distributed, in Horovod, in hvd_ext's optimizer, in Allreduce "
        "between 4 emulated hosts of a rank each, or in an Allreduce at the end of each step, also "
        "on hosts (all)",
    )
    parser.add_argument(
        "--mpi",
        metavar="NAME",
        help="the MPI library of an environment that `make mpis` has made: openmpi5, mpich5, "
        "intelmpi or mvapich2 (this environment's); for waits in MPI's calls alone",
    )
    parser.add_argument("--mark", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        (fault,), (where,) = options.fault, options.where
        work(fault, where, options.mark)
        return 0
    wheres = options.where or (_WHERE_MPI if options.mpi else _WHERE)
    if options.mpi and not set(wheres) <= set(_WHERE_MPI):
        raise UsageError(f"--mpi is for --where {', '.join(_WHERE_MPI)}")
    known = (*FAULTS, SLOWED, HELD_BACK, *HEALTHY, EVEN)
    names = [name for name in known if name in (options.fault or known)]
    asked = [
        (name, size, where, options.mpi or "")
        for where in wheres
        for name, size in itertools.product(names, [HOSTS] if where in ON_HOSTS else options.np)
        if name in served(where)
    ]
    cases: list[Case] = []
    # Jobs whose cores matter run alone.
    together = [one for one in asked if one[2] not in STEPS]
    alone = [one for one in asked if one[2] in STEPS]
    with progress("jobs", len(asked)) as advance, ThreadPoolExecutor(options.at_once) as pool:
        results = pool.map(lambda one: _run(*one), together)
        for case in itertools.chain(results, (_run(*one) for one in alone)):
            cases.append(case)
            # The jobs take long: a run that is ended early keeps the cases that it has.
            if options.json:
                _write(options.json, options.mpi, cases)
            advance(len(cases), case.fault)
    _show(*_split(cases))
    return 0


def _split(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Separate the cases with a fault from the healthy ones."""
    healthy = [case for case in cases if case.fault in (*HEALTHY, EVEN)]
    return [case for case in cases if case not in healthy], healthy


def _write(path: Path, mpi: str, cases: Sequence[Case]) -> None:
    faults, healthy = _split(cases)
    right = [case.right_rank and case.right_cause for case in faults]
    result = {
        "limit_s": limit_s(""),
        "limit_on_hosts_s": limit_s("hosts"),
        "mpi": mpi,
        "cases": [asdict(case) for case in faults],
        "healthy_cases": [asdict(case) for case in healthy],
        "healthy": len(healthy),
        "false_alarms": sum(not case.right_cause for case in healthy),
        "share_right": sum(right) / len(right) if right else None,
    }
    harness.write_result(path, result)


def _run(fault: str, size: int, where: str, mpi: str) -> Case:
    with tempfile.TemporaryDirectory() as text:
        folder, mark = Path(text) / "run", Path(text) / "mark"
        with job_with(fault, size, where, folder, mark, mpi) as job:
            if where in STEPS:
                return _slow(fault, size, where, verdict(job, folder, mark), folder)
            causes, noticed_s = _reported(job, folder, mark, limit_s(where))
    if fault in HEALTHY:
        if job.returncode and not causes:
            raise harness.BenchmarkError(
                f"the healthy job {fault!r} ended with code {job.returncode}"
            )
        return Case(fault, size, where, noticed_s, *_first(causes), not causes, not causes)
    kinds, which = _RIGHT[fault]
    expected = set(range(size)) if which == _ALL else {size - 1 if which == _LAST else which}
    right_rank = bool(causes) and expected <= set(causes[0].ranks)
    right_cause = bool(causes) and causes[0].kind in kinds
    right_cause = right_cause and bool(re.search(_SAID.get(fault, ""), causes[0].sentence))
    return Case(fault, size, where, noticed_s, *_first(causes), right_rank, right_cause)


def _slow(fault: str, size: int, where: str, found: Verdict, folder: Path) -> Case:
    # A link that loses packets may block a call for longer than the limit.
    report = folder / "hang.txt"
    hangs = report.exists() and (fault != LOSSY_LINK or "the link" not in report.read_text())
    kind, rank = _SLOWS.get(fault, ("", 0))
    # Where one pair of hosts loses packets, the link may be either's.
    most = 2 if fault == LOSSY_LINK else 1
    right_rank = rank in found.ranks if kind else not found.ranks
    right_rank = right_rank and len(found.ranks) <= most
    right_cause = found.kind == kind and (found.report_agrees or not kind) and not hangs
    said = (found.noticed_s, found.kind, found.sentence)
    return Case(fault, size, where, *said, right_rank, right_cause)


def _first(causes: Sequence[Cause]) -> tuple[str, str]:
    return (causes[0].kind, causes[0].sentence) if causes else ("", "")


def _reported(
    job: subprocess.Popen[bytes], folder: Path, mark: Path, after_s: float
) -> tuple[Sequence[Cause], float | None]:
    """The causes that a report has, and when it came; none where the job ends without one."""
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s:
        if (report := folder / "hang.txt").exists():
            came_s = report.stat().st_mtime
            began_s = mark.stat().st_mtime if mark.exists() else came_s
            _, causes = explained(folder, after_s)
            return causes, came_s - began_s - after_s
        if job.poll() is not None:
            return (), None
        time.sleep(0.1)
    with contextlib.suppress(HvdExtError):
        return explained(folder, after_s)[1], None
    return (), None


def _show(faults: Sequence[Case], healthy: Sequence[Case]) -> None:
    rows = []
    for name in dict.fromkeys(case.fault for case in faults):
        of_fault = [case for case in faults if case.fault == name]
        known_s = [case.noticed_s for case in of_fault if case.noticed_s is not None]
        rows.append(
            (
                name,
                str(len(of_fault)),
                f"{sum(case.right_rank for case in of_fault)}",
                f"{sum(case.right_cause for case in of_fault)}",
                f"{median(known_s):.1f}" if known_s else "-",
                f"{max(known_s):.1f}" if known_s else "-",
            )
        )
    columns = ("a rank", "jobs", "right rank", "right cause", "median s", "longest s")
    title = "hangs, and seconds from the fault to the report beyond the limit"
    if rows:
        harness.print_table(title, columns, rows)
    alarms = [case for case in healthy if not case.right_cause]
    if healthy:
        print(f"{len(healthy)} healthy jobs, {len(alarms)} false alarms")
    for case in (*alarms, *(c for c in faults if not (c.right_rank and c.right_cause))):
        print(f"{case.fault}, {case.ranks} ranks, {case.where}: {case.sentence or 'no report'}")


if __name__ == "__main__":
    harness.run(main, "diagnosis")
