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
# The launcher's doctor knows how Horovod is built, too.
sys.path.insert(0, str(ROOT / "launch"))
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
    (
        r"lib(rdmacm|ibverbs|ibumad|numa|pciaccess)\.so\S*, needed by",
        "this MPI needs libraries that are not installed: apt install libibverbs1 librdmacm1 "
        "libibumad3 libnuma1 libpciaccess0 libxml2, or your distribution's",
    ),
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
        env = {"PATH": os.defpath, "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | kept | variables
        env["PATH"] = f"{self.venv / 'bin'}{os.pathsep}{env['PATH']}"
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

    def sign(self, environment: dict[str, str], project: str, held: dict[str, str]) -> None:
        """Write down what the environment was made from and holds, once it is made."""
        draft = self.stamp.with_suffix(".draft")
        stamp = {"environment": environment, "project": project, "held": held}
        draft.write_text(json.dumps(stamp, indent=2))
        draft.replace(self.stamp)

    @property
    def packages(self) -> Path:
        """The folder that packages are installed in."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.venv / "lib" / version / "site-packages"

    def versions(self) -> dict[str, str]:
        """The version of every installed package, by its normalized name.

        Read from the names of folders, so that it takes milliseconds.
        """
        found = {}
        for folder in self.packages.glob("*.dist-info"):
            name, _, version = folder.name.removesuffix(".dist-info").partition("-")
            found[re.sub(r"[-_.]+", "-", name).lower()] = version
        return found


def cause(text: str) -> str:
    """The reason of a failure, from pip's output."""
    for pattern, reason in CAUSES:
        if re.search(pattern, text):
            return reason
    # A compiler's or a build's own word comes before pip's summary of it.
    for pattern in (r"^.*: error: .*$", r"CMake Error[^\n]*:\s*\n\s*[^\n]+", r"^.*ERROR: .*$"):
        if error := re.search(pattern, text, re.MULTILINE):
            return " ".join(error.group().split())
    return "pip failed"
