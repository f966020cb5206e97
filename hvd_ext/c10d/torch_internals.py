"""The private behaviour of torch that this package needs, a function each.

No other file of this package uses a private name of torch. When a release of torch changes one of
these, its test in tests/single/c10d/test_torch_internals.py fails, and this file is the one to fix.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch


def share_storage(tensor: torch.Tensor) -> int:
    """Move a tensor's storage to /dev/shm; views of it, and views of views, move along.

    A storage that is there already stays.

    Returns:
        The descriptor of the file, which is as long as the storage. It belongs to the storage and
        is closed with it.

    Raises:
        RuntimeError: /dev/shm is full, or is not there; the storage stays where it is.
    """
    try:
        descriptor: int = tensor.untyped_storage()._share_fd_cpu_()[0]
    except RuntimeError as error:
        # torch leaves the file that it could not fill, and names it in the error.
        if named := re.search(r"</(torch_\w+)>", str(error)):
            Path("/dev/shm", named[1]).unlink(missing_ok=True)
        raise
    return descriptor
