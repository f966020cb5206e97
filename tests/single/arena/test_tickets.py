"""The tickets of an arena's rounds: each bucket is ready once a round, and none is before."""

from __future__ import annotations

from hvd_ext.arena.tickets import Tickets


def test_a_bucket_is_made_ready_once_a_round() -> None:
    tickets = Tickets()
    for round_ in range(3):
        assert [tickets.of(index) for index in range(4)] == [4 * round_ + k for k in (1, 2, 3, 4)]
        assert not tickets.is_ready(0)
        assert list(tickets.make_ready(1)) == [0, 1]
        assert tickets.is_ready(1)
        assert not tickets.is_ready(2)
        assert list(tickets.make_ready(1)) == list(tickets.make_ready(0)) == []
        assert tickets.is_ready(1)
        assert list(tickets.make_ready(3)) == [2, 3]
        assert tickets.finish(4) == tickets.finished == 4 * (round_ + 1)


def test_an_exchange_between_rounds_makes_no_bucket_ready() -> None:
    tickets = Tickets()
    tickets.make_ready(1)
    tickets.finish(2)
    assert tickets.finish(1) == 3
    assert not tickets.is_ready(0)
    assert list(tickets.make_ready(1)) == [0, 1]


def test_a_round_that_was_not_made_ready_leaves_none_behind() -> None:
    tickets = Tickets()
    tickets.make_ready(0)
    tickets.finish(3)
    assert list(tickets.make_ready(2)) == [0, 1, 2]
