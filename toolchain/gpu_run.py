"""The steps of gpu_check.py: runs them within its time, and keeps and shows their results."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import psutil
from make_env import ROOT

BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
# A sample of the mesh model that does not fit one process, each being given so much memory:
# spatial.plan says 5.4 GiB are kept for backward, of which 2 processes hold 2.7 each.
MESH_LIMIT_BYTES = 5 * 2**30


class Failure(Exception):
    """A step that could not be done, in one line."""


class Check:
    """The steps, their results so far, and the time that is left."""

    def __init__(self, output: Path, minutes: float) -> None:
        self.output = output
        self.python = output / "venv" / "bin" / "python"
        self.ends_at = time.monotonic() + 60 * minutes
        self.results: dict[str, Any] = {"problems": {}, "done": []}
        self.results["date"] = date.today().isoformat()
        paths = [str(self.python.parent), os.environ.get("PATH", os.defpath)]
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join(paths),
            "LD_LIBRARY_PATH": os.pathsep.join(libraries(self.python.parent.parent)),
            "OMP_NUM_THREADS": "1",
            # A process that no launcher started needs no daemon of Open MPI's.
            "OMPI_MCA_ess_singleton_isolated": "1",
        }
        output.mkdir(parents=True, exist_ok=True)
        earlier = output / "results.json"
        if earlier.exists() and self.python.exists():
            self.results |= json.loads(earlier.read_text())
            self.results["problems"] = {}

    def run(self, name: str, limit_s: float, *command: object, **variables: str) -> str:
        """Run a command for at most `limit_s` of the time that is left; returns its output.

        Raises:
            Failure: no time is left, it took too long, or it failed; the log is next to it.
        """
        left_s = self.ends_at - time.monotonic()
        if left_s < 10:
            raise Failure("not run: no time was left")
        print(f"gpu_check: {name} (at most {min(limit_s, left_s):.0f} s)", flush=True)
        log = self.output / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.log"
        with log.open("w+", encoding="utf-8", errors="replace") as out:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=ROOT,
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(min(limit_s, left_s))
            except subprocess.TimeoutExpired:
                # A launcher's ranks are in process groups of their own. It starts no more of them.
                process.send_signal(signal.SIGSTOP)
                for member in (*psutil.Process(process.pid).children(recursive=True), process):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        member.kill()
                process.wait()
                raise Failure(f"not done in {min(limit_s, left_s):.0f} s: {log.name}") from None
            out.seek(0)
            text = out.read()
        if code:
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
            raise Failure(f"exit code {code}: {last.strip()[:200]} ({log.name})")
        return text

    def step(self, name: str, work: Any, *arguments: Any) -> None:
        """Do a step, unless it is done, and write down all there is; a failure is a result, too."""
        if name in self.results["done"]:
            return
        try:
            work(self, *arguments)
        except Exception as error:  # of the one step; the others are still to be done
            kind = "" if isinstance(error, Failure) else f"{type(error).__name__}: "
            self.results["problems"][name] = f"{kind}{error}"
            print(f"gpu_check: {name}: {kind}{error}", flush=True)
        else:
            self.results["done"].append(name)
        text = json.dumps(self.results, indent=2) + "\n"
        (self.output / "results.json").write_text(text)
        page = (ROOT / "docs" / "reference" / "gpu.md").read_text()
        before, rest = page.split(BEGIN)
        after = rest.split(END)[1]
        filled = f"{before}{BEGIN}{table(self.results)}{END}{after}"
        (self.output / "gpu.md").write_text(filled)


def exchange_rows(found: dict[str, Any]) -> list[str]:
    """Return the rows for what benchmarks.device_exchange measured."""
    lines = []
    under = " under MPS" * found["mps"]
    for case in found["cases"]:
        times = ", ".join(f"{n} {t['median']:.3f} ms" for n, t in case["time_ms"].items())
        where = f" on {case['nodes']} pretended nodes" * (case["nodes"] > 1) + under
        to_nccl = case["ratio_vs_nccl"]
        against = f", {to_nccl:.2f} x NCCL" if to_nccl else ", NCCL not measured"
        lines.append(
            f"| exchange of {case['message_bytes'] / 1e6:.3f} MB, {case['ranks']} processes"
            f"{where} | {times}; {case['chosen']} chosen: {case['ratio_vs_best_peer']:.2f} x the "
            f"best peer{against}, {case['share_of_copy_bandwidth']:.2f} of a copy's bandwidth |"
        )
    what = f"{found['size']} processes{under}"
    lines.append(f"| self-check, {what} | {found['self_check_s']:.2f} s |")
    if found["shares_gpu"] and not found["mps"]:
        lines.append(f"| NCCL, {what} | they share a GPU without MPS, which is unfair to NCCL |")
    names = {name for case in found["cases"] for name in case["time_ms"]}
    if found["shares_gpu"] and any(name.endswith("_pairwise") for name in names):
        lines.append(
            f"| one peer at a time (_pairwise), {what} | they share a GPU and use no link: this "
            "comparison says nothing about PCIe |"
        )
    lines += [f"| {n}, {what} | left out: {why} |" for n, why in found["left_out"].items()]
    return [line.replace("\n", " ") for line in lines]


def libraries(venv: Path) -> list[str]:
    """Where CuPy finds CUDA's libraries: it looks where this Python's packages are not."""
    wheels = (Path(path) / "nvidia" for path in sys.path if path.endswith("-packages"))
    found = [str(folder) for wheel in wheels for folder in sorted(wheel.glob("cu*/lib"))]
    given = os.environ.get("LD_LIBRARY_PATH")
    return [*found, str(venv / "lib"), *([given] if given else [])]


def table(results: dict[str, Any]) -> str:
    """The results that docs/reference/gpu.md shows."""
    lines = ["", f"Measured on {results['date']}: `{results['command']}`", ""]
    lines += [f"- {name}: {value}" for name, value in results.get("machine", {}).items()]
    lines += ["", "| what | result |", "|---|---|"]
    if counts := results.get("tests"):
        passed = counts["tests"] - counts["skipped"] - counts["failed"]
        outcome = f"{passed} passed, {counts['failed']} failed, {counts['skipped']} skipped"
        lines.append(f"| tests/gpu | {outcome} |")
    for key in sorted(key for key in results if key.startswith("exchange_")):
        lines += exchange_rows(results[key])
    if given := results.get("given_to_mpi"):
        times = ", ".join(f"{name} {us / 1e3:.3f} ms" for name, us in given["us"].items())
        told = (given["reason"] or times).replace("\n", " ")
        lines.append(f"| GPU memory given to MPI, 2 processes | {told} |")
    for processes in (2, 4):
        for name, found in results.get(f"halos_{processes}", {}).items():
            took = f"{found['exchange_ms']:.3f} ms, a copy of as many bytes"
            moved = f"{found['sent_bytes'] / 1e6:.2f} MB, {processes} processes"
            lines.append(f"| halo, {name}, {moved} | {took} {found['copy_ms']:.3f} ms |")
        for name, found in results.get(f"spatial_steps_{processes}", {}).items():
            lines.append(
                f"| {name} split over {processes} processes | a step {found['step_ms']:.1f} ms, "
                f"the host in exchanges for {found['host_share']:.1%} of it, "
                f"{found['memory_bytes'] / 2**30:.2f} GiB a process; gradients differ by "
                f"{found['error']:.1e}, noise {found['noise']:.1e} |"
            )
    for name, rate in results.get("images_per_second", {}).items():
        lines.append(f"| {name} | {rate:.1f} images/s |")
    for processes, rate in results.get("samples_per_second", {}).items():
        outcome = "does not fit" if rate is None else f"{rate:.2f} samples/s"
        limit = f"{MESH_LIMIT_BYTES / 2**30:.0f} GiB a process"
        lines.append(f"| mesh 2K by {processes}, {limit} | {outcome} |")
    for name, problem in results["problems"].items():
        lines.append(f"| {name} | not measured: {problem.replace('|', '/')} |")
    return "\n".join([*lines, "", ""])
