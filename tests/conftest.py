"""What every test may use: `launch` starts a program at several ranks; the marker `ranks`
has the test itself run on them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import settings

from tests.support.launch.launching import LAUNCHERS, rank_environment, run_to_end

pytest_plugins = ["tests.ranks.plugin"]

# A shell ignores SIGINT for what it starts in the background, and so does what that starts: tests
# that send Ctrl-C would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests run side by side, on small tensors: more threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# How long an example takes depends on the machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def launch() -> Launch:
    """`launch(np, args)` runs `python *args` at np ranks and returns code and output.

    Further arguments: `env`, variables to set; `timeout` in s, after which the whole job
    is killed and the test fails with its output; `launcher`, "hvd-launch" or "horovodrun".
    """

    def launch(
        np: int,
        args: Sequence[object],
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        launcher: str = "hvd-launch",
    ) -> subprocess.CompletedProcess[str]:
        command = [*LAUNCHERS[launcher](np), sys.executable, *map(str, args)]
        return run_to_end(command, rank_environment(env or {}), timeout)

    return launch
