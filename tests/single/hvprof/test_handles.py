"""What hvd_ext itself tells hvprof: its handles' hit rate, and how long it was blocked."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

from rich.console import Console

import hvprof
from hvprof.analysis.analysis import Analysis
from hvprof.model import RankRecording, Recording, Region, RegistrationCache
from hvprof.reporters.header import registration
from hvprof.reporters.terminal import terminal
from tests.support.hvprof.made_recordings import write_job

HANDLES = "hvd_ext, CUDA IPC handles"


def changed(tmp_path: Path, **fields: object) -> Recording:
    recording = hvprof.load(write_job(tmp_path, 2))
    ranks: list[RankRecording] = [dataclasses.replace(r, **fields) for r in recording.ranks]
    return dataclasses.replace(recording, ranks=tuple(ranks))


def test_the_hit_rate_is_that_of_the_handles_where_the_library_has_none(tmp_path: Path) -> None:
    assert registration(changed(tmp_path / "a", registration_cache=None)) == "not exposed"
    cache = RegistrationCache(HANDLES, 3, 1)
    recording = changed(tmp_path / "b", registration_cache=cache)
    assert registration(recording) == f"75.0 % of 8 ({HANDLES})"
    # Advice about the library's cache does not apply to these.
    assert not any("registered" in advice.title for advice in Analysis(recording).advice)


def test_exposed_is_the_time_in_regions_of_communication(tmp_path: Path) -> None:
    regions = (
        Region("exposed", "communication", 4, 0.008, 0.001, 0.003),
        Region("read", "io", 9, 1.0, 0.1, 0.2),
    )
    recording = changed(
        tmp_path, regions=regions, steps=(), step_count=0, all_steps=None, registration_cache=None
    )
    assert hvprof.exposed(recording) == hvprof.Exposed(4, 0.008, 0.008)
    out = io.StringIO()
    terminal.render(Analysis(recording), Console(file=out, width=120))
    assert "exposed communication: 8.0 ms in 4 steps, 2.00 ms a step" in out.getvalue()
