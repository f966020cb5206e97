"""Timelines of Horovod, made here: how messages are rebuilt, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hvprof
from hvd_ext.errors import UsageError
from hvprof.cli import main
from hvprof.importers.horovod_timeline import fused_messages, import_timeline
from tests.support.hvprof.made_timelines import FUSED, Event, single


def put(path: Path, events: list[Event]) -> Path:
    path.write_text(json.dumps(events))
    return path


def test_tensors_that_went_together_are_one_message() -> None:
    messages = fused_messages(FUSED)
    assert [(m.message_bytes, m.tensors, m.datatype) for m in messages] == [
        (202, 2, "float16"),
        (24, 1, "int64"),
    ]
    assert [(m.begin_us, m.end_us) for m in messages] == [(8, 58), (59, 69)]


def test_a_recording_of_a_timeline(tmp_path: Path) -> None:
    start: Event = {"ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 10**15}}
    events = [start, *(event for i in range(100) for event in single(i, 1000 * i))]
    timeline = put(tmp_path / "t.json", events)
    assert import_timeline(timeline, tmp_path / "run", force=False) == 0
    recording = hvprof.load(tmp_path / "run")
    assert (recording.source, recording.size, recording.start_unix_s) == ("timeline", 4, 1e9)
    cells = {cell.operation: cell for cell in recording.ranks[0].cells}
    data = cells["allreduce"]
    assert (data.calls, data.message_bytes, data.datatype) == (100, 100_000, "float32")
    assert (data.time_s, data.min_s, data.max_s) == pytest.approx((0.01, 1e-4, 1e-4))
    assert (data.block_calls, len(data.blocks_s)) == (4, 25)
    assert sum(data.blocks_s) == pytest.approx(data.time_s)
    assert (cells["negotiate"].traffic, cells["negotiate"].calls) == ("control", 100)
    with pytest.raises(UsageError, match="--force"):
        import_timeline(timeline, tmp_path / "run", force=False)
    command = ["import", str(timeline), "-o", str(tmp_path / "run"), "--force", "--size", "16"]
    assert main(command) == 0
    assert hvprof.load(tmp_path / "run").size == 16


def test_a_report_of_a_timeline_speaks_neither_of_mpi_nor_of_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline = put(tmp_path / "t.json", [event for i in range(9) for event in single(i, 1000 * i)])
    assert import_timeline(timeline, tmp_path / "run", force=False) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "MPI_Finalize" not in report
    assert "hvprof.step()" not in report
    assert "a timeline does not show how much of it the program waits for" in report


def test_a_timeline_of_a_killed_job_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    text = json.dumps([event for i in range(10) for event in single(i, 1000 * i)])
    timeline = tmp_path / "t.json"
    for length in (len(text) - 1, len(text) - 100, len(text) // 2):
        timeline.write_text(text[:length])
        import_timeline(timeline, tmp_path / "run", force=True)
        (data,) = (c for c in hvprof.load(tmp_path / "run").ranks[0].cells if c.traffic == "data")
        assert 4 <= data.calls <= 10
        assert data.message_bytes == 1000 * data.calls


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a Horovod timeline"),
        (b"{}", "not a Horovod timeline"),
        (b"[" * 100_000, "not a Horovod timeline"),
        (b"\xff\xfe", "it is not text"),
        (b"[]", "has no exchange"),
        (b'[1, null, "x", {"ph": "B"}]', "has no exchange"),
        (json.dumps(FUSED).encode(), "give --size N"),
    ],
)
def test_what_is_not_a_timeline_leaves_nothing(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(UsageError, match=said) as raised:
        import_timeline(tmp_path / "t.json", tmp_path / "run", force=False)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="cannot read"):
        import_timeline(tmp_path / "absent.json", tmp_path / "run", force=False)


JUNK = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=9), st.just([1]))


@settings(deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "ph": st.sampled_from("BEXM"),
                "pid": st.integers(0, 2) | JUNK,
                "ts": st.integers(0, 99) | JUNK,
                "name": st.sampled_from(["MPI_ALLREDUCE", "ALLREDUCE", "NEGOTIATE_X"]) | JUNK,
                "args": st.just({"dtype": "float32", "shape": "[2]"}) | JUNK,
            }
        ),
        max_size=40,
    )
)
def test_events_that_do_not_fit_are_passed_over(events: list[Event]) -> None:
    for message in fused_messages(events):
        assert message.end_us >= message.begin_us or message.operation == "negotiate"
