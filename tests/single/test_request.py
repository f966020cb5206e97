"""Arguments of DistributedOptimizer that exclude each other: refused by name, and in docs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hvd_ext.errors import UsageError
from hvd_ext.torch import horovods
from hvd_ext.torch.request import EXCLUSIONS, Request, table
from testbed.ranks import ROOT

# An argument for each feature, as a program gives it.
ASKED: dict[str, dict[str, Any]] = {
    "sync": {"sync": "diloco:steps=10"},
    "sharded": {"sharded": True},
    "reproducible": {"reproducible": 8},
    "compression": {"compression": "bf16"},
    "an op other than Average": {"op": horovods.Sum},
    "sharded with 16-bit parameters": {"sharded": True},
    "filters that differ between ranks": {},
}


def request_for(*features: str) -> Request:
    dtype = torch.float16 if "sharded with 16-bit parameters" in features else torch.float32
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
    if "filters that differ between ranks" in features:
        parameter.hvd_ext_own = True  # type: ignore[attr-defined]
    asked: dict[str, Any] = dict.fromkeys(
        ("compression", "op", "process_set", "sharded", "sync", "reproducible")
    )
    for feature in features:
        asked |= ASKED[feature]
    return Request.of(
        torch.optim.SGD([parameter], lr=0.1),
        passes=1,
        gradient_predivide_factor=1.0,
        num_groups=0,
        groups=None,
        sparse_as_dense=False,
        **asked,
    )


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovods, "size", lambda: 1)


@pytest.mark.parametrize("names", [exclusion.names for exclusion in EXCLUSIONS])
def test_two_that_exclude_each_other_are_refused_by_name(names: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=r"leave (it|one of them) out") as error:
        request_for(*names).check()
    values = {"sync": "sync='diloco", "reproducible": "reproducible=8", "sharded": "sharded=True"}
    assert values.get(names[0], "") in str(error.value)


@pytest.mark.parametrize("name", ASKED)
def test_each_alone_is_served(name: str) -> None:
    request = request_for(name).check()
    assert request.passes == (8 if name == "reproducible" else 1)


def test_docs_show_the_table() -> None:
    assert table() in (ROOT / "docs" / "guides" / "optimizer.md").read_text()
