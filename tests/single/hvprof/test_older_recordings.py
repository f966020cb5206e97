"""Recordings of earlier versions are read, and explained like new ones.

`older_recordings.tar.gz` was recorded at 77087bc: `messages` is known_messages.c on 3 ranks with a
trace, and in `killed` rank 1 of 2 was killed after 3 s of sleep, while rank 0 was in a barrier.
"""

from __future__ import annotations

import tarfile
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import hvprof
from hvd_ext.errors import UsageError
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.waiting.wait_time import waiting
from hvprof.format.current import read_current
from hvprof.format.layout import CURRENT, SLOT
from hvprof.reporters.formats.json_csv import as_json
from hvprof.reporters.page.html import report_page
from hvprof.reporters.page.sections.base import Page
from hvprof.reporters.terminal.terminal import render
from hvprof.reporters.verdict import verdict
from tests.support.hvprof.recorded import totals

ARCHIVE = Path(__file__).with_name("golden") / "older_recordings.tar.gz"


@pytest.fixture
def older(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_counts_partners_and_traces_are_those_that_were_written(older: Path) -> None:
    recording = hvprof.load(older / "messages")
    zero, _, two = recording.ranks
    assert totals(zero)["send"] == (6, 16 + 4 * 2**21)
    assert {(one.direction, one.rank): one.messages for one in two.partners} == {
        ("to", 0): 2,
        ("to", 1): 4,
        ("from", 1): 2,
        ("from", 0): 4,
    }
    assert all(rank.sites == () for rank in recording.ranks)
    assert waiting(recording) is not None
    analysis = Analysis(recording)
    assert "the others wait for rank 2" in verdict(analysis)
    stream = StringIO()
    render(analysis, Console(file=stream, width=100))
    assert "Call sites" not in stream.getvalue()
    assert as_json(analysis)["sites"] == []
    assert "the others wait for rank 2" in report_page(Page(analysis))


def test_the_last_calls_of_a_killed_job_are_those_that_were_written(older: Path) -> None:
    recording = hvprof.load(older / "killed")
    assert [rank.open_call for rank in recording.ranks] == ["barrier", ""]
    assert "at last the others waited" in verdict(Analysis(recording))
    path = older / "killed" / "rank-00000.now"
    current = read_current(path)
    assert current is not None
    assert current.beat is not None
    assert len(current.sent) == 0
    # A text began where the tag is now.
    data = bytearray(path.read_bytes())
    begin = (CURRENT.fields or {})["slots"][1] + (SLOT.fields or {})["tag"][1]
    data[begin : begin + 12] = b"allreduce of"
    path.write_bytes(data)
    current = read_current(path)
    assert current is not None
    (slot,) = current.slots[current.slots["about"] != b""]
    assert (slot["about"], slot["tag"]) == (b"allreduce of", 0)
    for version, act in ((2, "record again"), (9, "update it")):
        data[8:12] = np.uint32(version).tobytes()
        path.write_bytes(data)
        with pytest.raises(UsageError, match=f"has format {version}, this hvprof reads 4: {act}"):
            read_current(path)
