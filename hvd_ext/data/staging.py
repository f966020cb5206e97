"""A copy of a file on a node's own disk, made piece by piece while the file is used.

Which pieces are there is said by a file beside the copy, a byte for each, so processes need not
talk: one that holds the lock copies what lacks, whichever it is, and goes on where an earlier
one ended. A piece counts once it was read back from the disk.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import zlib
from pathlib import Path

import numpy as np

from hvd_ext.data.reading import FileReader
from hvd_ext.errors import HvdExtError
from hvd_ext.files import make_folder
from hvd_ext.units import MIB, format_bytes

log = logging.getLogger("hvd_ext")

PIECE_BYTES = 64 * MIB
_LOOK_EVERY_S = 1.0


class StagedCopy:
    """The copy of one file; a thread makes it from when it is opened until it is whole.

    Attributes:
        path: the copy.
    """

    def __init__(self, source: FileReader, fingerprint: str, folder: Path) -> None:
        """Take the space, and begin to copy.

        Args:
            source: what is copied.
            fingerprint: of what it holds; a later run with it finds its copy.
            folder: on the node's own disk.

        Raises:
            HvdExtError: the folder cannot be written, or has too little space.
        """
        self._source = source
        make_folder(folder)
        self.path = folder / f"{fingerprint[:32]}.pack"
        self._pieces = -(-source.file_bytes // PIECE_BYTES)
        self._whole = False
        try:
            self._file = self._take(self.path, source.file_bytes)
            self._marks = self._take(self.path.with_suffix(".pieces"), self._pieces)
        except OSError as error:
            raise HvdExtError(f"cannot stage to {folder}: {error.strerror}") from error
        self.reader = FileReader(self.path)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hvd_ext staging", daemon=True)
        self._thread.start()

    def has(self, offset: int, count: int) -> bool:
        """Whether the copy has these bytes."""
        if self._whole or count == 0:
            return True
        first, last = offset // PIECE_BYTES, (offset + count - 1) // PIECE_BYTES
        marks = os.pread(self._marks, last + 1 - first, first)
        return marks == b"\1" * (last + 1 - first)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the copy is whole; returns whether it is."""
        self._thread.join(timeout_s)
        return self._whole

    def close(self) -> None:
        """End the thread after the piece that it is at; what is there stays."""
        self._closing.set()
        self._thread.join()
        self.reader.close()
        for descriptor in (self._file, self._marks):
            os.close(descriptor)

    def _take(self, path: Path, count: int) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        lacks = count - 512 * os.fstat(descriptor).st_blocks
        disk = os.fstatvfs(descriptor)
        free = disk.f_bavail * disk.f_frsize
        if lacks > free:
            os.close(descriptor)
            if path.stat().st_size == 0:
                path.unlink()
            raise HvdExtError(
                f"cannot stage to {path.parent}: it has {format_bytes(free)} free, and "
                f"{format_bytes(lacks)} are to be copied: name another folder, or make room"
            )
        os.posix_fallocate(descriptor, 0, count)
        return descriptor

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                if os.pread(self._marks, self._pieces, 0) == b"\1" * self._pieces:
                    self._whole = True
                    return
                try:
                    # Gone with the process that holds it, however it ends.
                    fcntl.flock(self._marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._closing.wait(_LOOK_EVERY_S)
                    continue
                try:
                    self._copy_what_lacks()
                finally:
                    fcntl.flock(self._marks, fcntl.LOCK_UN)
        except (OSError, HvdExtError) as error:
            log.warning("hvd_ext: falling back to %s without a copy: %s", self._source.path, error)

    def _copy_what_lacks(self) -> None:
        for piece in range(self._pieces):
            if self._closing.is_set():
                return
            if os.pread(self._marks, 1, piece) == b"\1":
                continue
            begin = piece * PIECE_BYTES
            data = np.empty(min(PIECE_BYTES, self._source.file_bytes - begin), np.uint8)
            self._source.into(data, begin)
            expected = zlib.crc32(data.data)
            _write(self._file, data, begin)
            os.fdatasync(self._file)
            # What is read back is to come from the disk.
            os.posix_fadvise(self._file, begin, data.size, os.POSIX_FADV_DONTNEED)
            self.reader.into(data, begin)
            if zlib.crc32(data.data) != expected:
                raise HvdExtError(f"{self.path.parent} does not keep what is written to it")
            os.pwrite(self._marks, b"\1", piece)


def _write(descriptor: int, data: np.ndarray[tuple[int], np.dtype[np.uint8]], offset: int) -> None:
    done = 0
    while done < data.size:
        done += os.pwrite(descriptor, data[done:].data, offset + done)
