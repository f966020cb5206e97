"""`hvd-launch doctor`: what is right and wrong with a machine, what it costs, how to fix it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from hvd_ext.errors import UsageError
from hvd_launch.backends.libraries import LIBRARIES
from hvd_launch.doctor.collect import look
from hvd_launch.doctor.model import NOTE, OK, WRONG, Finding
from hvd_launch.doctor.rules import examine
from hvd_launch.job import check_size
from hvd_launch.machine import cores

HELP = "look for what makes jobs slow or wrong on this machine"
EXAMPLE = "hvd-launch doctor -np 4"
_SIGNS = {OK: ("ok", "green"), NOTE: ("note", "yellow"), WRONG: ("WRONG", "bold red")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Look at MPI, Horovod, mpi4py, GPUs, UCX and limits, with the Python that runs this; "
        "start a small job. Exit code 1 when something is wrong."
    )
    parser.add_argument(
        "-np",
        type=int,
        metavar="N",
        default=min(2, cores()),
        help="ranks that you mean to start on this machine (default: %(default)s)",
    )
    parser.add_argument(
        "--backend", choices=sorted(LIBRARIES), help="the MPI library (default: found)"
    )
    parser.add_argument("--log", type=Path, metavar="F", help="a job's log, to be looked at too")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    del command
    check_size(options.np)
    log = ""
    if options.log is not None:
        try:
            log = options.log.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(f"--log {options.log}: {error.strerror}") from error
    findings = _examine(options.np, options.backend, log)
    wrong = any(finding.status == WRONG for finding in findings)
    if options.json:
        told = {"ok": not wrong, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(told, indent=2))
    else:
        _show(findings)
    return int(wrong)


def _examine(ranks: int, backend: str | None, log: str) -> list[Finding]:
    if not sys.stderr.isatty():
        return examine(look(ranks, backend, log, lambda topic: None))
    from rich.console import Console

    with Console(stderr=True).status("looking") as status:
        return examine(look(ranks, backend, log, lambda topic: status.update(f"looking: {topic}")))


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        sign, colour = _SIGNS[finding.status]
        lines = [escape(finding.evidence)]
        if finding.status == WRONG:
            lines.append(f"[red]costs[/] {escape(finding.cost)}")
            lines.append(f"[green]fix[/]   {escape(finding.remedy)}")
        table.add_row(f"[{colour}]{sign}[/]", finding.topic, "\n".join(lines))
    console = Console(width=max(Console().width, 100), highlight=False)
    console.print(table)
    wrong = sum(finding.status == WRONG for finding in findings)
    console.print(f"{wrong} wrong" if wrong else "nothing is wrong")
