"""A packed file for tests with ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvd_ext.cli import progress
from hvd_ext.data import DataLoader
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.packed import PackedFile
from hvd_ext.data.packed.sources import Samples
from hvd_ext.errors import HvdExtError


@contextmanager
def packed_by_rank_0(samples: Samples) -> Iterator[Path]:
    """A packed file of some samples, gone afterwards. A collective of all ranks."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    name = tempfile.mkdtemp() if comm.rank == 0 else ""
    path = Path(comm.bcast(name)) / "a.pack"
    if comm.rank == 0:
        with progress("packing", shown=False) as advance:
            pack(samples, path, advance)
    comm.Barrier()
    yield path
    comm.Barrier()
    if comm.rank == 0:
        path.unlink()
        path.parent.rmdir()


def damage(path: Path, sample: int) -> None:
    """Change a byte of a record of a packed file."""
    with PackedFile(path) as file:
        at = int(file.tables.places[sample, 0]) + 9
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))


def error_of(loader: DataLoader) -> str:
    """What keeps a loader from its next batch; "" if nothing does."""
    try:
        next(loader)
    except HvdExtError as error:
        return str(error)
    return ""
