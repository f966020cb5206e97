"""Runs a command with the recorder preloaded into every process that it starts."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType

from hvd_ext.cli import not_negative
from hvd_ext.errors import StallError, UsageError
from hvd_ext.system.mpi_libraries import started_by
from hvd_ext.system.process import descendants, dying_with_parent, end_all
from hvprof.commands.running.beneath import shown_beneath
from hvprof.commands.running.watchdog import watched
from hvprof.commands.shared import add_output, after_dashes
from hvprof.recording.launchers import launcher_of
from hvprof.recording.session import begin, end, report_ranks, variables

HELP = "run a command and record it"
ABOUT = "Run a command unchanged, and record its calls of MPI and torch.distributed."
EXAMPLE = "record -o runs/a -- hvd-launch run -np 2 -- python train.py"

# After a SIGTERM, ranks may need to save their state, unless the job hangs.
_SAVING_S, _HANGING_S = 60.0, 3.0
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    parser.add_argument(
        "--on-hang",
        type=not_negative,
        default=0.0,
        metavar="S",
        help="seconds that a rank may be blocked in a call before the cause is printed and written "
        "to DIR/hang.txt, once (default: 0, never)",
    )
    parser.add_argument(
        "--abort-on-hang",
        action="store_true",
        help="with --on-hang, end the blocked job with exit code 75",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="show the live view of hvprof watch below the job's output, on a terminal",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="command to run"
    )


def run(options: argparse.Namespace) -> int:
    command = after_dashes(options.command)
    if options.abort_on_hang and not options.on_hang:
        raise UsageError("--abort-on-hang needs the seconds after which: --on-hang S")
    return record(
        options.output,
        command,
        force=options.force,
        trace_events=options.trace,
        audit=options.audit,
        steps=options.gpu,
        on_hang_s=options.on_hang,
        abort_on_hang=options.abort_on_hang,
        watch=options.watch,
    )


def record(
    directory: Path,
    command: Sequence[str],
    *,
    force: bool,
    trace_events: int = 0,
    audit: bool = False,
    steps: tuple[int, int] | None = None,
    on_hang_s: float = 0.0,
    abort_on_hang: bool = False,
    watch: bool = False,
) -> int:
    """Run a command and record its MPI traffic into a directory.

    Args:
        directory: made if it is missing; on a cluster, one that all nodes see.
        command: the program and its arguments.
        force: replace an earlier recording.
        trace_events: how many calls a rank's trace holds, 64 bytes each; 0: no trace.
        audit: whether hvd_ext's optimizers also write fingerprints.
        steps: the first and the last training step that torch.profiler records; None: no step.
        on_hang_s: how long a rank may be blocked before the cause is reported; 0: no report.
        abort_on_hang: whether the job is ended then.
        watch: whether to show the running job below its output.

    Returns:
        The command's exit code, 128 and the signal's number if a signal ended it, and 75 if it was
        ended because it hung.

    Raises:
        UsageError: the command or the directory cannot be used.
        HvdExtError: the recorder is not built.
    """
    if not command or shutil.which(command[0]) is None:
        raise UsageError(f"command not found: {' '.join(command[:1])!r}; give one on PATH after --")
    begin(directory, command, force=force)
    start_s = time.monotonic()
    added = variables(directory, trace_events, audit=audit, steps=steps)
    launcher_says = _version_of(command[0])
    command = _reaching_all_ranks(command, added, launcher_says)
    with (
        watched(directory, on_hang_s, abort=abort_on_hang) as aborted,
        shown_beneath(directory, asked=watch) as output,
    ):
        code = _run(command, {**os.environ, **added}, output, aborted)
    if aborted.is_set():
        code = StallError.exit_code
    _, strange = end(directory, code, time.monotonic() - start_s)
    report_ranks(
        directory,
        command,
        code,
        strange=strange,
        launcher_says=launcher_says,
        steps_were_asked_for=steps is not None,
    )
    return code


def _version_of(program: str) -> str:
    """Return a launcher's text about its version; "" for another program."""
    if launcher_of(program) in ("", "srun"):
        return ""
    about = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return about.stdout


def _reaching_all_ranks(
    command: Sequence[str], variables: Iterable[str], launcher_says: str
) -> list[str]:
    """Return the command; Open MPI's mpirun needs options to pass variables to other hosts."""
    library = started_by(launcher_says)
    if library is None or not library.passes_by:
        return list(command)
    carry = [word for name in variables for word in (library.passes_by, name)]
    return [command[0], *carry, *command[1:]]


def _run(
    command: list[str],
    environment: dict[str, str],
    output: int | None,
    aborted: threading.Event,
) -> int:
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []
    asked_to_end: set[int] = set()

    def forward(number: int, frame: FrameType | None = None) -> None:
        if process is None:
            early.append(number)
            return
        if process.returncode is not None:
            return
        if number == signal.SIGTERM:
            asked_to_end.update(descendants(process.pid))
        # Signals that a terminal would send to all of the command's processes.
        send = os.killpg if number in (signal.SIGINT, signal.SIGHUP) else os.kill
        with contextlib.suppress(ProcessLookupError):
            send(process.pid, number)

    # Signals that nohup ignores stay ignored.
    heard = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    # Before the command starts, because a signal in between would end hvprof and the command.
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=output,
            # hvprof handles Ctrl-C: it passes the signal on, and stays to close the recording.
            start_new_session=True,
            preexec_fn=dying_with_parent(),
        )
        for number in early:
            forward(number)
        code = process.wait()
        # A launcher that is a shell script, such as Intel MPI's, leaves its ranks behind.
        end_all(asked_to_end, _HANGING_S if aborted.is_set() else _SAVING_S)
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
