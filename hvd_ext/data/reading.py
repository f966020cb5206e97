"""Reading a file by pread, and counting the bytes."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import UsageError

Bytes = NDArray[np.uint8]


class FileReader:
    """An open file; any thread may read.

    Attributes:
        bytes_read: bytes read so far.
        file_bytes: length of the file when it was opened.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """Open a file.

        Args:
            path: the file.
            descriptor: descriptor of the file if it is open; closed with this object.

        Raises:
            UsageError: it cannot be read.
        """
        self.path, self.bytes_read = path, 0
        self._lock = threading.Lock()
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC
            self._descriptor = os.open(path, flags) if descriptor is None else descriptor
            self.file_bytes = os.fstat(self._descriptor).st_size
            # Whole samples are read in random places, so read-ahead would be wasted.
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}: name a packed file") from error

    def read(self, offset: int, count: int) -> bytes:
        """Read some bytes; raises like `into`."""
        data = np.empty(count, np.uint8)
        self.into(data, offset)
        return data.tobytes()

    def into(self, data: Bytes, offset: int) -> None:
        """Fill `data` from the file, beginning at `offset`.

        Raises:
            UsageError: the file cannot be read, or was cut off.
        """
        done = 0
        while done < data.size:
            try:
                count = os.preadv(self._descriptor, [data[done:].data], offset + done)
            except OSError as error:
                raise UsageError(
                    f"cannot read {self.path} at byte {offset + done}: {error.strerror}: "
                    "copy it again"
                ) from error
            if count == 0:
                raise UsageError(
                    f"{self.path} was cut off while it was read, at byte {offset + done} of "
                    f"{self.file_bytes}: copy it again"
                )
            done += count
        with self._lock:
            self.bytes_read += done

    def announce(self, offset: int, count: int) -> None:
        """Ask the kernel to begin reading bytes that will be needed soon."""
        # An error is ignored here: reading the bytes will raise it.
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, offset, count, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()
