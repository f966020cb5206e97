"""The mistakes that others make in spatial layers, made on purpose: the tests must see them.

Each mutant is killed by the test that is named beside it, run on fewer cases.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
from torch import Tensor

from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.assemble import index_of
from hvd_ext.spatial.exchange.communicator import Receive, Send
from hvd_ext.spatial.exchange.halo import HaloExchange
from hvd_ext.spatial.geometry import window_plan
from hvd_ext.spatial.geometry.partition import Box, cuts, lengths
from hvd_ext.spatial.layers.reducing import batch_norm


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EMULATED, GRIDS = load("test_emulator"), load("test_grids")


def cases_of(family: str) -> Callable[[], None]:
    return lambda: EMULATED.check_family(family, 40, seed=2026)


def symmetric_halo(patch: pytest.MonkeyPatch) -> None:
    """Half a kernel on both sides, whatever the stride and the cut."""

    def needs(window: Any, outputs: int, extent: int, parts: int) -> Any:
        bounds, half = cuts(extent, parts), getattr(window, "kernel", 1) // 2
        return tuple(
            (max(0, bounds[i] - half), min(extent, bounds[i + 1] + half)) for i in range(parts)
        )

    patch.setattr(window_plan, "needs", needs)


def halo_overwrites(patch: pytest.MonkeyPatch) -> None:
    """What neighbours send back in backward replaces, where it should be added."""

    def finish(self: Any, like: Tensor, boxes: Sequence[Box], slices: Sequence[Tensor]) -> Tensor:
        shard = self._plan.shard
        total = like.new_zeros((*self.lead, *lengths(shard)))
        for box, part in zip(boxes, slices, strict=True):
            total[index_of(box, shard)] += part
        for box, part in self._finish():
            total[index_of(box, shard)] = part
        return total

    patch.setattr(HaloExchange, "finish_adjoint", finish)


def zeros_inside(patch: pytest.MonkeyPatch) -> None:
    """Zero padding at every shard's border, where the neighbour's cells should be."""
    finish = HaloExchange.finish
    patch.setattr(HaloExchange, "finish", lambda self: [piece * 0 for piece in finish(self)])


def unweighed_batch_norm(patch: pytest.MonkeyPatch) -> None:
    """Every shard's statistics count the same, however many cells it has."""
    patch.setattr(batch_norm, "_shard_of", lambda x, rank: [(0, 1)] * len(x.extents))


def detached_halo(patch: pytest.MonkeyPatch) -> None:
    """No gradient goes back to where a halo came from."""
    start = HaloExchange.start_adjoint

    def nothing(self: Any, like: Tensor, lead: Any, pieces: Sequence[Tensor]) -> None:
        start(self, like, lead, [torch.zeros_like(piece) for piece in pieces])

    patch.setattr(HaloExchange, "start_adjoint", nothing)


def global_ranks(patch: pytest.MonkeyPatch) -> None:
    """Messages are addressed by rank in the group, and sent to that rank of the world."""
    start = emulator.EmulatedCommunicator.start

    def to_world(
        self: Any, sends: Sequence[Send], receives: Sequence[Receive], like: Tensor
    ) -> Callable[[], None]:
        mine = self._members[self.rank]
        self._name, self.rank, kept = "world", mine, (self._name, self.rank)
        wait = start(self, sends, receives, like)
        self._name, self.rank = kept

        def then() -> None:
            self._name, self.rank = "world", mine
            wait()
            self._name, self.rank = kept

        return then

    patch.setattr(emulator.EmulatedCommunicator, "start", to_world)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = {
    # test_emulator.py::test_split_layers_compute_what_whole_ones_do[...]
    "symmetric k//2 halo": (symmetric_halo, cases_of("conv")),
    "halo overwritten, not added": (halo_overwrites, cases_of("conv")),
    "zero padding inside": (zeros_inside, cases_of("conv")),
    "unweighed batch norm": (unweighed_batch_norm, cases_of("norm")),
    "detached halo": (detached_halo, cases_of("transposed")),
    # test_grids.py::test_sample_groups_do_not_mix
    "global rank for group rank": (global_ranks, GRIDS.test_sample_groups_do_not_mix),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_killed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, check = MUTANTS[mutant]
    check()
    mutate(monkeypatch)
    window_plan.plan_windows.cache_clear()
    with pytest.raises(Exception):  # noqa: B017, PT011 - any failure
        check()
    window_plan.plan_windows.cache_clear()
