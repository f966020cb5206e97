"""The build of Horovod for the present torch and MPI. Standard library only.

`make env` does this build, and `doctor` prints it as a command.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

RELEASE = "horovod==0.28.1"
_CMAKE = Path(__file__).with_name("horovod_cmake")
CMAKE_TOOLCHAIN = _CMAKE / "toolchain.cmake"
CMAKE_FILES = tuple(sorted(_CMAKE.rglob("*.cmake")))
# The packages that Horovod's setup.py needs while it is built.
BUILD_TOOLS = ("setuptools", "wheel", "cmake", "cffi", "cloudpickle", "pyyaml", "psutil")
SETTINGS = {
    "CMAKE_TOOLCHAIN_FILE": str(CMAKE_TOOLCHAIN),
    # Horovod's CMakeLists requires a policy that CMake 4 no longer has.
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}


def gpu_present() -> bool:
    """Whether this machine has a GPU of NVIDIA or AMD with its driver."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))


def build_variables(torch: Path) -> dict[str, str]:
    """Return the environment variables of Horovod's build.

    Args:
        torch: the folder of the installed package.
    """
    variables = {
        **SETTINGS,
        "TORCH_CXX_STANDARD": cxx_standard(torch),
        # A compilation with torch's headers takes more than 1 GB of memory.
        "MAKEFLAGS": f"-j{min(os.cpu_count() or 1, 8)}",
    }
    if not gpu_present():
        variables["HOROVOD_WITHOUT_CUDA"] = "1"
    return variables


def cxx_standard(torch: Path) -> str:
    """Return the C++ standard that torch's headers require: "17" or "20"; by default "17".

    Args:
        torch: the folder of the installed package.
    """
    header = torch / "include" / "torch" / "csrc" / "api" / "include" / "torch" / "all.h"
    text = header.read_text(encoding="utf-8") if header.exists() else ""
    asked = re.search(r"#error C\+\+(\d+) or later", text)
    return asked[1] if asked else "17"


def build_command(torch: Path, **variables: str) -> str:
    """Return the shell command that builds Horovod's release for this Python and installs it.

    Args:
        torch: the folder of the installed package.
        variables: more settings of the build.
    """
    settings = {**build_variables(torch), **variables}
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    options = "--force-reinstall --no-deps --no-build-isolation --no-cache-dir --no-binary horovod"
    return f"{pip} {' '.join(BUILD_TOOLS)} && {words} {pip} {options} {RELEASE}"
