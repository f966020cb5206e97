"""Records a job with hvprof, by running it for the variables; hvd-launch does not import it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_ext.errors import HvdExtError, UsageError
from hvd_launch.machine import module
from hvd_launch.settings import Setting

_PAGE = "docs/guides/hvprof.md"
_WHY = {
    "LD_PRELOAD": "hvprof's recorder is loaded into every process of the job",
    "HVPROF_DIR": "each rank records into this folder",
    "HVPROF_TRACE": "how many calls a rank keeps one by one",
}


@dataclass(frozen=True)
class Profile:
    """A recording of a job.

    Attributes:
        directory: folder of the recording.
        command: each rank's program, for reports.
    """

    directory: Path
    command: tuple[str, ...]

    @property
    def begin_command(self) -> tuple[str, ...]:
        """Return the command that makes the folder, whose output is not needed."""
        output = ("-o", str(self.directory), "--json")
        return (*module("hvprof"), "env", *output, "--", *self.command)

    @property
    def end_command(self) -> tuple[str, ...]:
        """Return the command that completes the recording; the exit code must be appended."""
        return (*module("hvprof"), "close", str(self.directory), "--exit-code")

    def settings(self) -> tuple[Setting, ...]:
        """Return the settings that make ranks record.

        Raises:
            HvdExtError: hvprof refuses.
        """
        variables: dict[str, str] = json.loads(_output(self.begin_command, "--dry-run"))
        return tuple(
            Setting(
                name,
                value,
                "unset",
                _WHY.get(name, "for hvprof's recorder"),
                _PAGE,
            )
            for name, value in variables.items()
        )

    def begin(self) -> None:
        """Make the folder, before the job starts.

        Raises:
            HvdExtError: hvprof refuses.
        """
        _output(self.begin_command)

    def end(self, exit_code: int) -> int:
        """Complete the recording; returns the job's code, or hvprof's if only hvprof failed."""
        done = subprocess.run([*self.end_command, str(exit_code)], check=False)
        return exit_code or done.returncode


def _output(command: Sequence[str], *options: str) -> str:
    at = list(command).index("--")
    words = [*command[:at], *options, *command[at:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["hvprof env failed without a word"])[-1]
        error = UsageError if done.returncode == UsageError.exit_code else HvdExtError
        raise error(f"--profile: {last.removeprefix('hvprof: error: ')}")
    return done.stdout
