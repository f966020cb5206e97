"""hvprof watch next to a job that runs until enough was said of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tests.support.hvprof.recorded import ENVIRONMENT

PATIENCE_S = 90.0
WATCH = [sys.executable, "-m", "hvprof", "watch"]


def watched(
    directory: Path, text: str, times: int, end: Callable[[], None], *options: str
) -> tuple[int, list[str], str]:
    """Watch a job, and end it once a text was said so often: exit code, lines, and errors."""
    command = [*WATCH, str(directory), *options]
    lines: list[str] = []
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        stop = threading.Timer(PATIENCE_S, end)
        stop.start()
        for line in watch.stdout:
            lines.append(line.rstrip("\n"))
            if sum(text in one for one in lines) == times:
                end()
        errors = watch.stderr.read()
        stop.cancel()
    assert sum(text in one for one in lines) >= times, (lines, errors)
    return watch.returncode, lines, errors
