"""Ranks by node: numbering, rails and relays, for every division of some ranks."""

from __future__ import annotations

from itertools import product

import pytest

from hvd_ext.engine.nodes import Nodes
from hvd_ext.errors import UsageError

DIVISIONS = [marks for size in range(1, 6) for marks in product(range(size), repeat=size)]


@pytest.mark.parametrize("marks", [(0, 0, 0, 1), (0, 1, 1, 0), (7, 3, 7, 3, 5)])
def test_nodes_are_numbered_by_their_first_ranks(marks: tuple[int, ...]) -> None:
    nodes = Nodes.of(marks)
    firsts = [ranks[0] for ranks in nodes.ranks]
    assert firsts == sorted(firsts)
    for rank, node in enumerate(nodes.of_rank):
        assert rank in nodes.ranks[node]
        assert nodes.ranks[node][nodes.local_rank(rank)] == rank


def test_every_rank_has_one_relay_on_every_node() -> None:
    for marks in DIVISIONS:
        nodes = Nodes.of(marks)
        ranks = range(len(marks))
        for node, theirs in enumerate(nodes.ranks):
            relayed = [nodes.relayed_by(relay) for relay in theirs]
            assert sorted(rank for some in relayed for rank in some) == list(ranks), marks
            for relay, some in zip(theirs, relayed, strict=True):
                assert relay in some, "a rank is its own relay"
                assert all(nodes.relay(rank, node) == relay for rank in some)


def test_the_most_that_a_rank_relays_is_known_without_a_look_at_all() -> None:
    for marks in DIVISIONS:
        nodes = Nodes.of(marks)
        assert nodes.most_relayed == max(len(nodes.relayed_by(rank)) for rank in range(len(marks)))


def test_a_rail_has_one_rank_of_every_node() -> None:
    for marks in DIVISIONS:
        nodes = Nodes.of(marks)
        for number in range(nodes.rails):
            rail = nodes.rail(number)
            assert sorted(nodes.of_rank[rank] for rank in rail) == list(range(len(nodes.ranks)))
            assert list(rail) == sorted(rail)


def test_no_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="no ranks"):
        Nodes.of([])
