"""The wheel and the sdist: what is in them, and that they install where MPI is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILED = {
    "hvd_ext/allreduce/algorithms/libnative.so",
    "hvd_ext/compression/libcodec.so",
    "hvd_ext/shm/libbuilt_in.so",
    "hvd_ext/shm/libwindow.so",
    "hvprof/recorder/libhvprof.so",
}
FILES = {
    "hvd_ext/arena/cuda/reduce.cu",
    "hvd_launch/doctor/horovod_cmake/project.cmake",
    "hvd_launch/doctor/horovod_cmake/toolchain.cmake",
    "hvd_launch/doctor/horovod_cmake/without_cuda/FindPytorch.cmake",
    "hvprof/include/hvprof.f90",
    "hvprof/include/hvprof.h",
    "hvprof/recorder/hvprof.ld",
    "hvprof/recorder/hvprof.o",
}
SUFFIXES = {".c", ".cmake", ".cu", ".f90", ".h", ".j2", ".ld", ".o", ".py", ".so"}


def build(folder: Path, **variables: str) -> Path:
    """A wheel from the sdist, so that the sdist is complete, too; returns the wheel."""
    backend = (
        "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
    )
    environ = {**os.environ, **variables}
    command = [sys.executable, "-c", backend]
    copy = folder / "copy"
    names = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "-z"]).decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists() and not name.startswith(("docs/", "tests/", "benchmarks/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([*command, "build_sdist", folder], cwd=copy, env=environ, check=True)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    subprocess.run([*command, "build_wheel", folder], cwd=source, env=environ, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.mark.long
def test_a_wheel_holds_the_packages_their_libraries_and_nothing_else(tmp_path: Path) -> None:
    wheel = build(tmp_path)
    names = contents(wheel)
    assert {name.partition("/")[0] for name in names} == {"hvd_ext", "hvprof", "hvd_launch"}
    assert {name for name in names if name.endswith(".so")} == COMPILED
    assert names >= FILES
    assert {Path(name).suffix for name in names} <= SUFFIXES
    roots = {"hvd_ext": ROOT, "hvprof": ROOT / "profiling", "hvd_launch": ROOT / "launch"}
    tracked = {
        str(path.relative_to(root))
        for package, root in roots.items()
        for path in (root / package).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == tracked
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = archive.read(path).decode()
    assert "Classifier: " in metadata
    assert "# hvd_ext" in metadata
    required = re.findall(r"^Requires-Dist: (\S+?)[<>=;]", metadata, re.MULTILINE)
    assert "torch" in required  # of the extra alone
    assert not re.search(r"^Requires-Dist: (torch|horovod)(?!.*extra ==)", metadata, re.MULTILINE)
