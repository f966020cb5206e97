"""An environment that is being made, and the commands run for it. Standard library only."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What went wrong, from what pip printed: the first match counts.
CAUSES = (
    (
        r"No space left on device|Errno 28",
        "the disk is full: free some space there, or set TMPDIR to a folder on another disk",
    ),
    (
        r"Failed to establish a new connection|Max retries exceeded|Temporary failure in name"
        r"|ConnectTimeout|ReadTimeout|ProxyError|SSLError|Connection refused"
        r"|\(from versions: none\)",
        "the package index cannot be reached: check the network and `pip config list`",
    ),
    (r"cc1plus|cc1: out of memory|Killed signal", "the compiler ran out of memory"),
)


class Failure(Exception):
    """An error that stops the work, in one line that says what to do."""


class Workshop:
    """The environment at `venv`, and the commands that are run for it."""

    def __init__(self, venv: Path) -> None:
        self.venv = venv
        self.python = venv / "bin" / "python"
        self.log = venv / "make_env.log"
        self.stamp = venv / "made_from.json"
        self.started = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        print(f"make env: [{time.monotonic() - self.started:4.0f} s] {text}", flush=True)

    def create(self) -> None:
        """Create the environment, in place of an earlier one.

        Raises:
            Failure: the folder is not an environment, or Python cannot make one.
        """
        if any(self.venv.glob("*")) and not (self.venv / "pyvenv.cfg").exists():
            raise Failure(f"{self.venv} is not a Python environment: move it away")
        # If this script runs in the environment itself, the Python that it was made with.
        python = getattr(sys, "_base_executable", sys.executable)
        command = [python, "-m", "venv", "--clear", str(self.venv)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            lines = (made.stdout + made.stderr).strip().splitlines() or ["no reason given"]
            raise Failure(f"{python} -m venv failed: {lines[-1]}")

    def pip(self, *arguments: str, **variables: str) -> None:
        """Run the environment's pip with `variables` set; its output goes to the log.

        Raises:
            Failure: pip failed; with the reason in its output.
        """
        # An MPI's or a cluster's PYTHONPATH would count as installed packages.
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        path = f"{self.venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        env = kept | variables | {"PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        command = [str(self.python), "-m", "pip", *arguments]
        with self.log.open("a+", encoding="utf-8", errors="replace") as log:
            start = log.seek(0, os.SEEK_END)
            code = subprocess.run(
                command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, check=False
            ).returncode
            log.seek(start)
            text = log.read() if code else ""
        if code:
            raise Failure(f"{cause(text)} (all of pip's output: {self.log})")

    def sign(self, environment: dict[str, str], project: str) -> None:
        """Write down what the environment was made from, once it is made."""
        draft = self.stamp.with_suffix(".draft")
        draft.write_text(json.dumps({"environment": environment, "project": project}, indent=2))
        draft.replace(self.stamp)

    def version(self, package: str) -> str:
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        return subprocess.check_output([self.python, "-c", code], text=True).strip()


def cause(text: str) -> str:
    """The reason of a failure, from pip's output."""
    for pattern, reason in CAUSES:
        if re.search(pattern, text):
            return reason
    # A compiler's or a build's own word comes before pip's summary of it.
    error = re.search(r"^.*(: error: |ERROR: ).*$", text, re.MULTILINE)
    return error.group().strip() if error else "pip failed"
