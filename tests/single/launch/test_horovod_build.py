"""How Horovod is built: its CMake settings, and the command of `doctor` as it is printed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hvd_launch.doctor import horovod_build
from testbed.ranks import ROOT

CMAKE = horovod_build.CMAKE_TOOLCHAIN.parent
PRINT = "from hvd_launch.doctor import child; print(child.builds()['build'])"
IMPORT = """
import horovod, horovod.torch as hvd
assert hvd.mpi_built() and hvd.gloo_built()
print(horovod.__file__)
"""


@pytest.mark.parametrize("standard", ["17", "20"])
def test_the_cxx_standard_is_the_one_that_torch_asks_for(standard: str, tmp_path: Path) -> None:
    header = tmp_path / "include/torch/csrc/api/include/torch/all.h"
    header.parent.mkdir(parents=True)
    header.write_text(
        f"#if __cplusplus < 0\n#error C++{standard} or later compatible compiler is required\n"
    )
    assert horovod_build.cxx_standard(tmp_path) == standard
    assert f"TORCH_CXX_STANDARD={standard} " in horovod_build.build_command(tmp_path)


def test_the_installed_torch_names_its_cxx_standard() -> None:
    torch = Path(str(importlib.util.find_spec("torch").origin)).parent
    header = torch / "include/torch/csrc/api/include/torch/all.h"
    assert f"C++{horovod_build.cxx_standard(torch)} or later" in header.read_text()


def evaluated(folder: Path, code: str, **variables: str) -> str:
    """The messages of a CMake script."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("no cmake: make env installs it with Horovod")
    (folder / "script.cmake").write_text(code)
    command = [cmake, "-P", str(folder / "script.cmake")]
    env = {**os.environ, **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("standard", ["14", "17"])
def test_every_standard_of_horovods_means_torchs(standard: str, tmp_path: Path) -> None:
    """Horovod's release asks for C++14, its master for C++17."""
    code = f'include("{CMAKE / "project.cmake"}")\nmessage("${{CMAKE_CXX{standard}_STANDARD_'
    code += 'COMPILE_OPTION}")'
    assert evaluated(tmp_path, code, TORCH_CXX_STANDARD="20").strip() == "-std=c++20"


def test_without_a_gpu_only_torchs_cuda_libraries_are_left_out(tmp_path: Path) -> None:
    kept = ("/home/cuda/torch/lib/libc10.so", "/home/cuda/torch/lib/libtorch_cpu.so")
    left = ("/cuda/lib/libcudart.so.13", "/t/libc10_cuda.so", "/t/libtorch_cuda.so", "X-NOTFOUND")
    module = tmp_path / "cmake" / "Modules" / "FindPytorch.cmake"
    module.parent.mkdir(parents=True)
    module.write_text(f"set(Pytorch_CUDA TRUE)\nset(Pytorch_LIBRARIES {' '.join(kept + left)})")
    code = f'set(PROJECT_SOURCE_DIR "{tmp_path}")\n'
    code += f'include("{CMAKE / "without_cuda" / "FindPytorch.cmake"}")\n'
    code += 'message("${Pytorch_CUDA} ${Pytorch_LIBRARIES}")'
    assert evaluated(tmp_path, code).strip() == f"FALSE {';'.join(kept)}"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_printed_command_builds_horovod_for_this_torch_and_mpi(tmp_path: Path) -> None:
    """In an environment that has torch and MPI from this one, and a Horovod only by the command."""
    venv = tmp_path / "own environment"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = str(venv / "bin" / "python")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    (packages / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    path = os.pathsep.join((str(venv / "bin"), str(Path(sys.executable).parent), os.defpath))
    env = {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'launch'}"}
    command = subprocess.check_output([python, "-c", PRINT], env=env, text=True)
    done = subprocess.run(
        ["sh", "-c", command],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}"
    place = subprocess.check_output([python, "-c", IMPORT], env=env, cwd=tmp_path, text=True)
    assert Path(place).is_relative_to(venv)
