"""Reports a job that hangs, once, while hvprof record waits for its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from hvd_ext.errors import HvdExtError
from hvd_ext.system.files import write_text
from hvprof.commands.running.hang import explained, lines
from hvprof.recording.load import HANG_NAME, job_folders

_MOST_EVERY_S = 5.0


@contextlib.contextmanager
def watched(directory: Path, on_hang_s: float, *, abort: bool = False) -> Iterator[threading.Event]:
    """Watch a recorded job during the block.

    Once a rank has been blocked for `on_hang_s` seconds, the diagnosis is printed to standard error
    and written to `hang.txt` in the folder, once. 0: the job is not watched.

    Args:
        directory: folder of the recording.
        on_hang_s: time after which a blocked rank is reported.
        abort: whether this process then gets a SIGTERM, which it passes on to the job.

    Yields:
        An event that is set if the job is ended for this reason.
    """
    ended, aborted = threading.Event(), threading.Event()

    def watch_job() -> None:
        if _watch(directory, on_hang_s, ended) and abort:
            aborted.set()
            os.kill(os.getpid(), signal.SIGTERM)

    watch = threading.Thread(target=watch_job, daemon=True)
    if on_hang_s:
        watch.start()
    try:
        yield aborted
    finally:
        ended.set()
        if on_hang_s:
            watch.join()


def _watch(directory: Path, on_hang_s: float, ended: threading.Event) -> bool:
    """Report a job that hangs; returns whether one did."""
    every_s = min(_MOST_EVERY_S, on_hang_s / 4)
    # The wait comes first: the command is forked meanwhile, and no lock is held.
    while not ended.wait(every_s):
        if any(_reports(folder, on_hang_s) for folder in job_folders(directory)):
            return True
    return False


def _reports(folder: Path, on_hang_s: float) -> bool:
    """Report a job if it hangs; returns whether it does."""
    with contextlib.suppress(HvdExtError):  # no rank has started anything that can be read
        standings, causes = explained(folder, on_hang_s)
        if any(cause.waiting for cause in causes):
            text = "\n".join(lines(standings, causes, on_hang_s))
            print(f"hvprof: the job hangs: {text}", file=sys.stderr, flush=True)
            write_text(folder / HANG_NAME, text + "\n")
            return True
    return False
