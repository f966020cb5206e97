"""The journal of `hvd-launch tune`: torn, another's, or no journal at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hvd_ext.errors import UsageError
from hvd_launch.tune.common.journal import Journal


def test_a_journal_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    journal = Journal(path, {"ranks": 2})
    journal.append({"kind": "run", "rate": 1.5, "by_wall_time": False})
    with path.open("a") as file:
        file.write('{"kind": "ru')
    again = Journal(path, {"ranks": 2})
    assert [entry["rate"] for entry in again.find(kind="run")] == [1.5]
    again.append({"kind": "run", "rate": 2.5, "by_wall_time": False})
    assert len(Journal(path, {"ranks": 2}).find(kind="run")) == 2


def test_a_journal_of_something_else_is_refused_or_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    Journal(path, {"ranks": 2}).append({"kind": "run"})
    with pytest.raises(UsageError, match=r"ranks 2, not 4: .* -o, .* --fresh"):
        Journal(path, {"ranks": 4})
    assert Journal(path, {"ranks": 4}, fresh=True).entries == []
    assert "run" in (tmp_path / "a.jsonl.1").read_text()
    path.write_text("not JSON\n")
    with pytest.raises(UsageError, match="holds no measurements"):
        Journal(path, {"ranks": 4})
    path.write_text("")
    assert Journal(path, {"ranks": 4}).entries == []


TIME = {"kind": "time", "candidate": "ring", "round": 0, "attempt": 0, "message_bytes": 8}


@pytest.mark.parametrize(
    "line",
    ["[]", "5", "{}", '{"subject": 5}', "[" * 100_000, '{"kind": []}', '{"kind": "job"}']
    + ['{"kind": "run", "rate": 0, "by_wall_time": false}', '{"kind": "facts", "phase": "facts"}']
    + [json.dumps({**TIME, "us": us}) for us in ([], [0.0], [1, "a"], 5, [None], [math.nan])],
)
def test_a_journal_that_holds_something_else_is_one_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text in (f"{line}\n", f'{{"subject": {{}}}}\n{line}\n'):
        path.write_text(text)
        with pytest.raises(UsageError, match="move it away"):
            Journal(path, {})
        assert path.read_text() == text
