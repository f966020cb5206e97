"""hvprof hang: why a job hangs, read from the files that its ranks map."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hvd_ext.errors import StallError
from hvd_ext.units import counted
from hvprof.commands.shared import add_running, console, print_json, print_lines
from hvprof.live import words
from hvprof.live.cause import Cause
from hvprof.live.diagnosis import diagnose
from hvprof.live.messages import with_unreceived
from hvprof.live.reading import read_standings
from hvprof.live.stacks.python import with_lines
from hvprof.live.standing import Standing, Thread
from hvprof.live.waits import ENDED

HELP = "explain why a running job hangs"
ABOUT = (
    "Name the ranks that the others wait for, and what they do, while the job that hvprof records"
    " runs. Reads its files; the job does not notice."
)
EXAMPLE = "hang runs/a"

_LISTED = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_running(parser, longer_than_s=5.0)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the causes, and what each rank does; returns 75 if ranks are blocked."""
    standings, causes = explained(options.directory, options.longer_than)
    if options.json:
        print_json(as_json(standings, causes))
    else:
        print_lines(lines(standings, causes, options.longer_than), console())
    return StallError.exit_code if causes else 0


def explained(directory: Path, longer_than_s: float) -> tuple[Sequence[Standing], Sequence[Cause]]:
    """Return standings and causes, with the suspects' lines and unreceived messages.

    Raises:
        UsageError: as `read_standings`.
    """
    standings = read_standings(directory)
    causes = diagnose(standings, longer_than_s)
    seen = with_lines(standings, {rank for cause in causes for rank in cause.ranks})
    return seen, with_unreceived(directory, seen, diagnose(seen, longer_than_s))


def lines(
    standings: Sequence[Standing], causes: Sequence[Cause], longer_than_s: float
) -> list[str]:
    """Return the diagnosis as text: the causes, then what the ranks do."""
    if all(one.process in ENDED for one in standings):
        return [f"the job has ended: {words.ended(standings)}"]
    if not causes:
        limit = f"{longer_than_s:g} s"
        return [f"no rank has been blocked in a call for {limit}; --longer-than asks for less"]
    said = [cause.sentence for cause in causes]
    doing: dict[str, list[int]] = {}
    for one in standings:
        doing.setdefault(words.does(one, _shown(one)), []).append(one.rank)
    rows = [f"  {words.numbers(ranks)}: {does}" for does, ranks in doing.items()]
    if len(rows) > _LISTED:
        rows[_LISTED:] = [f"  and {counted(len(rows) - _LISTED, 'line')} more: --json has all"]
    return [*said, "", "each rank:", *rows]


def as_json(standings: Sequence[Standing], causes: Sequence[Cause]) -> dict[str, Any]:
    """Return the diagnosis for programs: the causes, and all ranks with their threads."""
    return {
        "blocked": bool(causes),
        "causes": [asdict(cause) for cause in causes],
        "ranks": [
            {
                "rank": one.rank,
                "host": one.host,
                "pid": one.pid,
                "process": one.process.name.lower(),
                "signal": one.signal,
                "steps": one.steps,
                "line": one.line,
                "does": words.does(one, _shown(one)),
                "threads": [_thread(thread) for thread in one.threads],
            }
            for one in standings
        ],
    }


def _thread(thread: Thread) -> dict[str, Any]:
    call = thread.call
    return {
        "id": thread.id,
        "main": thread.main,
        "since_s": thread.since_s,
        "region": thread.region,
        "region_s": thread.region_s,
        "call": call
        and {
            "operation": call.operation,
            "started": call.started,
            "communicator": call.group.name if call.group else "",
            "number": call.number,
            "peer": call.peer,
            "tag": call.tag,
            "message_bytes": call.message_bytes,
            "coordination": call.coordination,
        },
    }


def _shown(one: Standing) -> Thread | None:
    inside = [thread for thread in one.threads if thread.call]
    return max(inside, key=lambda thread: (thread.main, thread.since_s), default=None)
