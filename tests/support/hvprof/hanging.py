"""Recorded jobs that hang, and why."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hvd_ext.errors import UsageError
from hvprof.live.cause import Cause
from hvprof.live.diagnosis import diagnose
from hvprof.live.reading import read_standings
from hvprof.live.standing import Standing
from tests.support.hvprof.recorded import ENVIRONMENT, PROGRAMS, RECORD, mpirun

PATIENCE_S = 90.0
_LONGER_THAN_S = 1.5


@contextlib.contextmanager
def job(
    directory: Path,
    ranks: int,
    how: str,
    *options: str,
    program: str = "stands_still.py",
    launcher: Sequence[str] = (),
    python: Sequence[str | Path] = (sys.executable,),
    variables: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A recorded job that hangs; it is ended with the block.

    Args:
        directory: of the recording.
        ranks: of the job.
        how: in which way it hangs: the program's argument.
        options: of hvprof record.
        program: each rank's.
        launcher: starts the ranks; this machine's mpirun if it is empty.
        python: what runs the program.
        variables: of the environment, besides.
    """
    command = [*map(str, python), str(PROGRAMS / program), how]
    if how == "killed":
        # The launcher sees a shell, and ends nothing.
        command = ["sh", "-c", '"$@"; sleep 600', "sh", *command]
    started = subprocess.Popen(
        [*RECORD, *options, "-o", str(directory), "--", *(launcher or mpirun(ranks)), *command],
        env={**ENVIRONMENT, **(variables or {})},
        stderr=subprocess.PIPE,
    )
    try:
        yield started
    finally:
        with contextlib.suppress(UsageError):
            for one in read_standings(directory):
                with contextlib.suppress(ProcessLookupError):
                    if one.pid and not one.by_signs:
                        os.kill(one.pid, signal.SIGKILL)
        if started.poll() is None:
            started.terminate()
            started.communicate(timeout=60)


def standing(directory: Path) -> Sequence[Standing]:
    with contextlib.suppress(UsageError):
        return read_standings(directory)
    return ()


def cause_of(directory: Path, kind: str, blamed: Sequence[int] = ()) -> Cause:
    """The cause, as soon as one of this kind is found, of these ranks.

    On a busy machine the signs of life of ranks that do run are late at times.
    """
    end_s = time.monotonic() + PATIENCE_S
    found: Sequence[Cause] = ()
    while time.monotonic() < end_s:
        ranks = standing(directory)
        found = diagnose(ranks, _LONGER_THAN_S) if ranks and all(r.pid for r in ranks) else ()
        of_ranks = bool(found) and (not blamed or found[0].ranks == tuple(blamed))
        if of_ranks and found[0].kind == kind and found[0].waiting:
            return found[0]
        time.sleep(0.2)
    raise AssertionError(f"no cause {kind!r}, but {found}")
