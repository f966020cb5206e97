"""A copy of a file on a node's own disk, made piece by piece while the file is used.

A file next to the copy has a byte for each piece that is there, so processes need not communicate:
the process that holds the lock copies the missing pieces, and resumes where an earlier one stopped.
A piece counts once it was read back from the disk. If nodes share the reading, the processes that
hold the locks of their nodes send each other the pieces. Both files are in a folder that only the
user can access, so no other user can have made or changed them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from zlib_ng.zlib_ng import crc32

from hvd_ext.data.agreed import agreed, require_threads
from hvd_ext.data.reading import Bytes, FileReader
from hvd_ext.data.staging.private_files import (
    open_private_file,
    open_private_folder,
    private_folder,
)
from hvd_ext.data.staging.sharing import PieceSharing
from hvd_ext.errors import HvdExtError, StallError
from hvd_ext.job.ending import at_exit, not_at_exit
from hvd_ext.units import MIB, format_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger("hvd_ext")

PIECE_BYTES = 64 * MIB
_LOOK_EVERY_S = 1.0


class StagedCopy:
    """The copy of one file; a thread makes it while it is open, until it is whole.

    Attributes:
        path: the copy.
        reader: reads it.
    """

    def __init__(
        self, source: FileReader, fingerprint: str, folder: Path, comm: MPI.Comm | None = None
    ) -> None:
        """Reserve the space, and begin to copy. With `comm` a collective.

        Args:
            source: file to copy.
            fingerprint: fingerprint of its content; a later run with the same one finds the copy.
            folder: folder on the node's own disk; the copy goes to a private folder in it.
            comm: ranks of all nodes, which read the source once together; None: each node reads all
                of it.

        Raises:
            HvdExtError: the folder cannot be written, has too little space, or its files may come
                from another user; with `comm` on every rank.
        """
        self._source = source
        self.path = private_folder(folder) / f"{fingerprint[:32]}.pack"
        self._marks_path = self.path.with_suffix(".pieces")
        self._pieces = -(-source.file_bytes // PIECE_BYTES)
        self._whole = False
        self._folder = self._file = self._marks = -1
        try:
            with agreed(comm):
                self._take_space(folder, comm)
        except HvdExtError:
            self._give_back()
            raise
        self._closing = threading.Event()
        self._sharing = self._share_with(comm) if comm else None
        self._thread = threading.Thread(target=self._run, name="hvd_ext staging", daemon=True)
        self._thread.start()

    def has(self, offset: int, count: int) -> bool:
        """Whether the copy has these bytes."""
        if self._whole or count == 0:
            return True
        if self._marks < 0:  # the copy is closed
            return False
        first, last = offset // PIECE_BYTES, (offset + count - 1) // PIECE_BYTES
        marks = os.pread(self._marks, last + 1 - first, first)
        return marks == b"\1" * (last + 1 - first)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the copy is whole; returns whether it is."""
        self._thread.join(timeout_s)
        return self._whole

    def close(self) -> None:
        """End the thread after its current piece; finished pieces stay.

        Closing again does nothing.
        """
        self._leave()
        not_at_exit(self._leave)
        self.reader.close()
        self._close_files()

    def _leave(self, failed: bool = False) -> None:
        self._closing.set()
        self._thread.join()

    def _take_space(self, folder: Path, comm: MPI.Comm | None) -> None:
        if comm:
            require_threads(comm, "sharing a staged file")
        try:
            self._folder = open_private_folder(self.path.parent)
            self._file = open_private_file(self._folder, self.path)
            self._marks = open_private_file(self._folder, self._marks_path)
            _take_space(self._file, self._source.file_bytes, folder)
            _take_space(self._marks, self._pieces, folder)
            self.reader = FileReader(self.path, os.dup(self._file))
        except OSError as error:
            raise HvdExtError(
                f"cannot stage to {_place(folder)}: {error.strerror}: name another folder"
            ) from error

    def _give_back(self) -> None:
        """Close the files; remove them if they have no piece yet."""
        if self._marks >= 0 and b"\1" not in os.pread(self._marks, self._pieces, 0):
            # Another process of the node may do the same at this moment.
            with contextlib.suppress(OSError):
                os.unlink(self.path.name, dir_fd=self._folder)
                os.unlink(self._marks_path.name, dir_fd=self._folder)
                self.path.parent.rmdir()
        self._close_files()

    def _close_files(self) -> None:
        descriptors = (self._folder, self._file, self._marks)
        self._folder = self._file = self._marks = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    def _share_with(self, comm: MPI.Comm) -> PieceSharing | None:
        """Take part for this node, if this process holds its lock. A collective over `comm`."""
        from mpi4py import MPI

        leads = self._lock()
        leaders = comm.Split(0 if leads else MPI.UNDEFINED)
        if not leads:
            return None
        at_exit(self._leave)
        marks = np.frombuffer(os.pread(self._marks, self._pieces, 0), np.uint8)
        return PieceSharing(leaders, marks == 0)

    def _lock(self) -> bool:
        """Take the lock, unless another process has it; the lock ends with its process."""
        try:
            fcntl.flock(self._marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _run(self) -> None:
        try:
            if self._sharing:
                try:
                    self._share(self._sharing)
                finally:
                    fcntl.flock(self._marks, fcntl.LOCK_UN)
            while not self._closing.is_set():
                if os.pread(self._marks, self._pieces, 0) == b"\1" * self._pieces:
                    self._whole = True
                    return
                if not self._lock():
                    self._closing.wait(_LOOK_EVERY_S)
                    continue
                try:
                    self._copy_what_lacks()
                finally:
                    fcntl.flock(self._marks, fcntl.LOCK_UN)
        except (OSError, HvdExtError) as error:
            log.warning("hvd_ext: falling back to %s without a copy: %s", self._source.path, error)

    def _share(self, sharing: PieceSharing) -> None:
        """Read this node's part, and get the others'."""
        failure: Exception | None = None
        try:
            for piece, data in sharing.pieces(self._read, self._piece_bytes, self._closing):
                if failure is None:
                    try:
                        self._keep(piece, data)
                    # The other nodes continue, and need the pieces that this node reads.
                    except (OSError, HvdExtError) as error:
                        failure = error
        except StallError as error:
            log.warning("hvd_ext: falling back to a copy by this node alone: %s", error)
        if failure:
            raise failure

    def _copy_what_lacks(self) -> None:
        for piece in range(self._pieces):
            if self._closing.is_set():
                return
            if os.pread(self._marks, 1, piece) != b"\1":
                data = np.empty(self._piece_bytes(piece), np.uint8)
                self._read(piece, data)
                self._keep(piece, data)

    def _piece_bytes(self, piece: int) -> int:
        return min(PIECE_BYTES, self._source.file_bytes - piece * PIECE_BYTES)

    def _read(self, piece: int, data: Bytes) -> None:
        self._source.into(data, piece * PIECE_BYTES)

    def _keep(self, piece: int, data: Bytes) -> None:
        """Write a piece, and check that the disk has it.

        Raises:
            OSError: it cannot be written.
            HvdExtError: reading it back gives other bytes.
        """
        begin, expected = piece * PIECE_BYTES, crc32(data.data)
        _write(self._file, data, begin)
        os.fdatasync(self._file)
        # The bytes that are read back must come from the disk.
        os.posix_fadvise(self._file, begin, data.size, os.POSIX_FADV_DONTNEED)
        found, block = 0, np.empty(MIB, np.uint8)
        for first in range(0, data.size, MIB):
            part = block[: data.size - first]
            self.reader.into(part, begin + first)
            found = crc32(part.data, found)
        if found != expected:
            raise HvdExtError(
                f"{self.path.parent} does not keep what is written to it: the disk may be faulty; "
                "use another --stage-to"
            )
        os.pwrite(self._marks, b"\1", piece)


def _take_space(descriptor: int, count: int, folder: Path) -> None:
    """Reserve the space that a file lacks.

    Raises:
        HvdExtError: there is too little.
        OSError: it cannot be written.
    """
    lacks = count - 512 * os.fstat(descriptor).st_blocks
    disk = os.fstatvfs(descriptor)
    free = disk.f_bavail * disk.f_frsize
    if lacks > free:
        raise HvdExtError(
            f"cannot stage to {_place(folder)}: it has {format_bytes(free)} free, and "
            f"{format_bytes(lacks)} are to be copied: name another folder, or make room"
        )
    os.posix_fallocate(descriptor, 0, count)


def _place(folder: Path) -> str:
    return f"{folder} on {socket.gethostname()}"


def _write(descriptor: int, data: Bytes, offset: int) -> None:
    done = 0
    while done < data.size:
        done += os.pwrite(descriptor, data[done:].data, offset + done)
