"""The hit rate of hvd_ext's handles of device memory, as hvprof reports it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import hvprof
from hvprof.facts import registration
from tests.made_recordings import write_job


def test_the_hit_rate_is_that_of_the_handles_where_the_library_has_none(tmp_path: Path) -> None:
    recording = hvprof.load(write_job(tmp_path, 2))
    ranks = [dataclasses.replace(rank, registration_cache=None) for rank in recording.ranks]
    assert registration(dataclasses.replace(recording, ranks=tuple(ranks))) == "not exposed"
    with_handles = tuple(
        dataclasses.replace(
            rank,
            cells=(
                *rank.cells,
                *(
                    dataclasses.replace(
                        rank.cells[0],
                        operation="handle_cache",
                        algorithm=name,
                        calls=calls,
                    )
                    for name, calls in (("hit", 3), ("miss", 1))
                ),
            ),
        )
        for rank in ranks
    )
    shown = registration(dataclasses.replace(recording, ranks=with_handles))
    assert shown == "75.0 % of 8 (hvd_ext, CUDA IPC handles)"
    # What the library itself exposes comes first.
    shown = registration(dataclasses.replace(recording, ranks=(recording.ranks[0], *with_handles)))
    assert "CUDA IPC" not in shown
