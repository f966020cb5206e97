"""Fixtures that several tests of the optimizer share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.optimizer.layers import Training


@pytest.fixture(scope="module")
def nodes_by_variable() -> Iterator[None]:
    """With HVD_EXT_TEST_RANKS_PER_NODE so many ranks are a node, as far as hvd_ext is told."""
    with pytest.MonkeyPatch.context() as patch:
        if ranks_per_node := os.environ.get("HVD_EXT_TEST_RANKS_PER_NODE"):
            from hvd_ext.torch.job import lifecycle
            from tests.support.arena.pretended_nodes import pretend

            each = int(ranks_per_node)
            patch.setattr(lifecycle, "discover", lambda comm, _: pretend(comm, each))
        yield


@pytest.fixture
def training(hvd: ModuleType) -> Training:
    """A training of many short gradients, of which the first and the last have hooks."""
    from tests.support.optimizer.layers import Training

    made = Training()
    made.until_two_hooks_are_left()
    return made
