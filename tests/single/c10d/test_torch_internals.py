"""The private behaviour of torch that hvd_ext.c10d needs."""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path

import pytest
import torch

from hvd_ext.c10d.torch_internals import share_storage


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_storage_moves_to_a_file_and_its_views_follow() -> None:
    before = descriptors()
    tensor = torch.arange(1000.0)
    view = tensor[10:30].view(4, 5)
    old = tensor.data_ptr()
    descriptor = share_storage(tensor)
    assert tensor.data_ptr() != old
    assert view.data_ptr() == tensor.data_ptr() + 40
    assert tensor.is_shared()
    assert view[0, 0] == 10
    tensor[10] = -1
    assert view[0, 0] == -1
    assert os.pread(descriptor, 4, 40) == b"\x00\x00\x80\xbf"
    assert os.fstat(descriptor).st_size == tensor.nbytes
    assert share_storage(tensor) == descriptor  # once is enough
    del tensor, view
    assert descriptors() == before


def test_where_there_is_no_room_a_storage_stays_where_it_is() -> None:
    names = {path.name for path in Path("/dev/shm").iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    tensor = torch.arange(1000.0)
    old = tensor.data_ptr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RuntimeError):
            share_storage(tensor)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert tensor.data_ptr() == old
    assert tensor.sum() == 999 * 500
    left = {path.name for path in Path("/dev/shm").iterdir()} - names
    assert not [name for name in left if f"_{os.getpid()}_" in name]
