"""The demo's stages: commands that are run one after another, logged and watched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import BenchmarkError
from hvd_ext.cli import Advance, progress
from hvd_ext.errors import UsageError
from hvd_ext.system.files import make_folder
from hvd_ext.system.process import started
from testbed import load, ranks

# By it a folder is known to be a demo's.
PHOTOGRAPHS = "photographs"
# What the system itself and the reading of clocks may use.
_QUIET_CORES = 0.1


@dataclass(frozen=True)
class Stage:
    """A command that was run.

    Attributes:
        title: what it did.
        seconds: how long it took.
        other_cores: how many cores other programs kept busy meanwhile, on average.
    """

    title: str
    seconds: float
    other_cores: float

    @property
    def disturbed(self) -> bool:
        return self.other_cores > _QUIET_CORES


class Stages:
    """Runs commands, one at a time, with a bar on a terminal and two lines each elsewhere."""

    def __init__(self, log: Path) -> None:
        """Nothing is run yet.

        Args:
            log: gets all that the commands print.
        """
        self.log = log
        self.done: list[Stage] = []

    def run(
        self, title: str, command: Sequence[object], environment: Mapping[str, str] | None = None
    ) -> str:
        """Run a command, and return what it printed; a count in it moves the bar.

        Args:
            title: what it does.
            command: its words.
            environment: by default that of `testbed.ranks`.

        Raises:
            BenchmarkError: it failed.
        """
        words = [str(word) for word in command]
        output: list[str] = []
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with (
            self.log.open("a") as log,
            self._watched(title) as advance,
            started(words, env=environment or ranks.environment(), **pipes) as process,
        ):
            log.write(f"$ {' '.join(words)}\n")
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                output.append(line)
                if count := re.search(r"(\d+)/(\d+)  (.*)", line):
                    done, total, note = count.groups()
                    advance(int(done), note, int(total))
            if process.wait() != 0:
                tail = "".join(output[-15:])
                raise BenchmarkError(f"{title} failed, see {self.log}; it ended with:\n{tail}")
            advance(1, "", 1)
        return "".join(output)

    def python(self, title: str, module: str, *arguments: object) -> str:
        """Run a module of the checkout, as `run` does."""
        return self.run(title, [sys.executable, "-m", module, *arguments])

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(stage) for stage in self.done]

    def on_the_load(self) -> str:
        """Whether other programs took part of the machine, in a sentence or two."""
        cores = len(os.sched_getaffinity(0))
        disturbed = sorted(
            (stage for stage in self.done if stage.disturbed),
            key=lambda stage: stage.other_cores,
            reverse=True,
        )
        if not disturbed:
            return f"No other program used more than {_QUIET_CORES} of the {cores} cores."
        worst = ", ".join(
            f"{stage.other_cores:.1f} of {cores} cores during {stage.title}"
            for stage in disturbed[:3]
        )
        more = f", and less during {rest} more" if (rest := len(disturbed) - 3) > 0 else ""
        return f"The machine was busy: other programs used {worst}{more}. Run it again when idle."

    @contextmanager
    def _watched(self, title: str) -> Iterator[Advance]:
        terminal = sys.stderr.isatty()

        def say(what: str) -> None:
            if not terminal:
                print(f"{title}{what}", file=sys.stderr, flush=True)

        say(" ...")
        begin = load.now()
        try:
            with progress(title, shown=terminal) as advance:
                yield advance
        except BaseException:
            say(f": failed after {time.monotonic() - begin.clock_s:.0f} s")
            raise
        end = load.now()
        seconds, others = end.clock_s - begin.clock_s, load.cores_of_others(begin, end)
        stage = Stage(title, round(seconds, 1), round(others, 2))
        self.done.append(stage)
        busy = f", while other programs used {others:.1f} cores" if stage.disturbed else ""
        say(f": {seconds:.0f} s{busy}")


@contextmanager
def built_beside(output: Path) -> Iterator[Path]:
    """A folder next to `output` that takes its place when the block has succeeded.

    If the block fails, the folder stays for its log, until the next try.

    Raises:
        UsageError: `output` is something else than an earlier demo, or cannot be made.
    """
    output = output.resolve()
    part = output.with_name(f"{output.name}.part")
    for folder in (output, part):
        if folder.exists() and not (folder / PHOTOGRAPHS).is_dir():
            raise UsageError(f"{folder} is not an earlier demo: name another --output")
    shutil.rmtree(part, ignore_errors=True)
    make_folder(part / PHOTOGRAPHS)
    yield part
    if output.exists():
        # Until the next line both are in `part`.
        output.rename(part / "earlier")
    part.rename(output)
    shutil.rmtree(output / "earlier", ignore_errors=True)
