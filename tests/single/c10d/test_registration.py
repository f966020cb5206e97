"""How torch.distributed finds the backend, and the tensors that it refuses."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
import torch
import torch.distributed as dist

import hvd_ext.c10d
from hvd_ext.c10d.backend.tensors import check
from hvd_ext.errors import UsageError


def test_the_entry_point_registers_the_backend() -> None:
    (found,) = entry_points(group="torch.distributed.backends", name="hvd_ext")
    assert found.load() is hvd_ext.c10d.register
    hvd_ext.c10d.register()  # again
    assert dist.is_backend_available("hvd_ext")
    assert dist.Backend("hvd_ext") == "hvd_ext"


def test_a_tensor_that_is_elsewhere_is_refused() -> None:
    check("all_reduce()", [torch.ones(2)])
    with pytest.raises(UsageError, match=r"all_reduce\(\) of a tensor on meta: hvd_ext serves the"):
        check("all_reduce()", [torch.ones(2), torch.ones(2, device="meta")])
    with pytest.raises(UsageError, match="sparse tensor: call to_dense"):
        check("all_reduce()", [torch.eye(3).to_sparse()])
