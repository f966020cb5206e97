"""Who sends to whom: the matrix of the page, its tables, and how they grow with the ranks."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import hvprof
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.waiting.partners import Partners, partners
from hvprof.format.writer import write_rank
from hvprof.model import Partner
from hvprof.reporters.page.html import report_page
from hvprof.reporters.page.sections.base import Page
from tests.support.hvprof.made_recordings import write_job


def ring(directory: Path, ranks: int) -> hvprof.Recording:
    """A made recording whose rank r sends r + 1 messages of 100 bytes to the next, in a ring."""
    write_job(directory, ranks, 40)
    for rank in hvprof.load(directory).ranks:
        after, before = (rank.rank + 1) % ranks, (rank.rank - 1) % ranks
        sent = Partner(after, "to", rank.rank + 1, 100 * (rank.rank + 1), 0.0)
        received = Partner(before, "from", before + 1, 100 * (before + 1), 0.25 + rank.rank)
        path = directory / f"rank-{rank.rank:05d}.hvprof"
        path.unlink()
        write_rank(directory, dataclasses.replace(rank, partners=(received, sent)))
    return hvprof.load(directory)


def found_in(recording: hvprof.Recording) -> Partners:
    found = partners(recording)
    assert found is not None
    return found


def test_each_pair_has_what_its_sender_counted(tmp_path: Path) -> None:
    found = found_in(ring(tmp_path / "run", 4))
    assert found.sent == {(r, (r + 1) % 4): (r + 1, 100 * (r + 1)) for r in range(4)}
    names, sums = found.groups()
    assert names == ["0", "1", "2", "3"]
    assert sums[3] == [400, 0, 0, 0]
    assert found.distances() == [(1, 10, 1000)]
    assert [(one.rank, one.partner) for one in found.waits] == [(3, 2), (2, 1), (1, 0), (0, 3)]


def test_distances_are_the_shorter_way_round() -> None:
    sent = {(0, 5): (1, 10), (0, 3): (2, 40), (1, 4): (1, 5), (2, 2): (1, 1)}
    found = Partners(6, sent, (0, 0), ())
    assert found.distances() == [(3, 3, 45), (1, 1, 10), (0, 1, 1)]


def test_many_ranks_share_rows_and_nothing_is_lost(tmp_path: Path) -> None:
    ranks = 333
    found = found_in(ring(tmp_path / "run", ranks))
    names, sums = found.groups()
    assert len(names) == len(sums) <= 32
    assert (names[0], names[-1]) == ("0-10", "330-332")
    assert sum(map(sum, sums)) == 100 * ranks * (ranks + 1) // 2


def test_the_page_shows_the_matrix(tmp_path: Path) -> None:
    page = report_page(Page(Analysis(ring(tmp_path / "run", 4))))
    assert "Messages from rank to rank: 100 % goes over a distance of 1" in page
    assert "<title>3 to 0: 400 bytes</title>" in page or "<title>3 to 0: 400 B</title>" in page
    assert "receives from 2" in page


def test_the_page_of_4096_ranks_is_bounded() -> None:
    sent = {(r, (r + d) % 4096): (1, 8) for r in range(4096) for d in (1, 64)}
    names, sums = Partners(4096, sent, (0, 0), ()).groups()
    assert len(names) == 32
    assert sum(map(sum, sums)) == 2 * 4096 * 8


def test_a_job_of_collectives_alone_has_no_matrix(tmp_path: Path) -> None:
    write_job(tmp_path / "run", 4, 40)
    recording = hvprof.load(tmp_path / "run")
    assert partners(recording) is None
    assert not re.search("Messages from rank to rank", report_page(Page(Analysis(recording))))
