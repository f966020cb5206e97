"""`hvd-launch doctor`: problems of a machine, their impact, and how to fix them."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from hvd_ext.errors import UsageError
from hvd_ext.units import counted
from hvd_launch.backends.libraries import LIBRARIES
from hvd_launch.doctor.collect import look
from hvd_launch.doctor.model import NOTE, OK, WRONG, Finding
from hvd_launch.doctor.rules import examine
from hvd_launch.job import check_size
from hvd_launch.machine import cores

HELP = "check this machine for settings that make jobs slow or wrong"
EXAMPLE = "hvd-launch doctor -np 4"
_SIGNS = {OK: ("ok", "green"), NOTE: ("note", "yellow"), WRONG: ("WRONG", "bold red")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check MPI, Horovod, mpi4py, GPUs, UCX and limits with this Python, and start a small job. "
        "The exit code is 1 if something is wrong."
    )
    parser.add_argument(
        "-np",
        type=int,
        metavar="N",
        default=min(2, cores()),
        help="number of ranks to start on this machine (default: %(default)s)",
    )
    parser.add_argument(
        "--backend", choices=sorted(LIBRARIES), help="MPI library (default: detected)"
    )
    parser.add_argument("--log", type=Path, metavar="F", help="log of a job, to check too")
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
        report = {"ok": not wrong, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2))
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
            lines.append(f"[red]impact[/] {escape(finding.impact)}")
            lines.append(f"[green]fix[/]    {escape(finding.remedy)}")
        table.add_row(f"[{colour}]{sign}[/]", finding.topic, "\n".join(lines))
    console = Console(width=max(Console().width, 100), highlight=False)
    console.print(table)
    wrong = sum(finding.status == WRONG for finding in findings)
    console.print(f"{counted(wrong, 'problem')} found" if wrong else "no problems found")
