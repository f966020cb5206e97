"""The carriers of gradients on GPUs by name, and the order of a pairwise exchange."""

from __future__ import annotations

import pytest

from hvd_ext.allreduce import carrier_names
from hvd_ext.allreduce.carrier_names import CARRIERS, PAIRWISE, carriers_of, in_any_order
from hvd_ext.arena.cuda.pairwise import order_of_peers


def test_each_carrier_has_a_name_in_recordings() -> None:
    assert carriers_of(1) == {
        "ipc": "cuda_ipc",
        "ipc_pairwise": "cuda_ipc_pairwise",
        "nccl": "nccl",
    }
    assert carriers_of(2) == {
        "staged": "cuda_ipc and pinned memory",
        "nccl": "cuda_ipc and nccl",
        "mpi": "cuda_ipc and mpi",
        "staged_pairwise": "cuda_ipc_pairwise and pinned memory",
        "nccl_pairwise": "cuda_ipc_pairwise and nccl",
        "mpi_pairwise": "cuda_ipc_pairwise and mpi",
    }
    assert set(CARRIERS) == carriers_of(1).keys() | carriers_of(2).keys()


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_order_of_peers_is_no_other_carrier(nodes: int) -> None:
    for name in carriers_of(nodes):
        assert in_any_order(name) in carriers_of(nodes)
        assert carrier_names.is_pairwise(name) == (name == in_any_order(name) + PAIRWISE)
    assert not carrier_names.is_pairwise(carrier_names.usual_carrier(nodes))


@pytest.mark.parametrize("size", range(1, 10))
def test_at_each_step_every_rank_has_one_peer_and_is_one(size: int) -> None:
    orders = [order_of_peers(rank, size) for rank in range(size)]
    for rank, order in enumerate(orders):
        assert sorted([rank, *order]) == list(range(size))
    for step in zip(*orders, strict=True):
        assert sorted(step) == list(range(size))
