"""The names of operations that a recorder is told of."""

from __future__ import annotations

from types import SimpleNamespace

from hvd_ext import named_waits


def test_names_that_are_used_once_are_not_kept_for_ever(monkeypatch):
    library = SimpleNamespace(hvprof_group=lambda *_: 0, hvprof_submitted=lambda _: None)
    monkeypatch.setattr(named_waits, "recorder", lambda: library)
    operations = named_waits.NamedOperations("hvd_ext", 0, [0, 1])
    keys = []
    for step in range(named_waits._MOST_NAMES + 100):
        operations.submit(f"loss of step {step}")
        keys.append(operations.submit("loss"))
    assert len(operations._counts) == named_waits._MOST_NAMES
    assert len(set(keys)) == len(keys)
