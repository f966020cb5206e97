"""Damaged timelines of Horovod: a recording or one clear line, never a traceback or a hang."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import hvprof
from hvprof.cli import main
from tests.fuzz.damage import CASES, damaged, refusal
from tests.support.hvprof.made_timelines import FUSED, single

START = {"ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 10**15}}
# Written as they are: Python's json refuses to write the longest number.
HOSTILE = (
    *("NaN", "Infinity", "-Infinity", "1e308", "-1e308", "1e-320", "0", "-0.0", "-1"),
    *("9" * 19, "9" * 30, "9" * 400, "9" * 5000, "-" + "9" * 400, "1e400"),
    *("null", "true", "[]", "{}", '""', '"NaN"', '"\\u00b2"', '"\\u0663"', '"[99999999999999999]"'),
    *(f'"[{"9" * 30}, {"9" * 30}]"', f'"{"9" * 5000}"', f'"[{"9" * 5000}]"', '"[]"', "[[[1]]]"),
    *('"MPI_ALLREDUCE"', '"NEGOTIATE_ALLREDUCE"', '"NCCL_BCAST"', '"B"', '"E"', '"X"', '"bool"'),
)
_MARK = "to be replaced"


def mutated(seed: int) -> str:
    """A sound timeline with one to six values replaced, anywhere in it."""
    rng = random.Random(seed)
    events = [START, *FUSED, *(event for i in range(20) for event in single(i % 7, 1000 * i))]
    events = json.loads(json.dumps(events))
    values = [rng.choice(HOSTILE) for _ in range(rng.randint(1, 6))]
    for number in range(len(values)):
        place: Any = rng.choice(events)
        key = rng.choice(list(place))
        if isinstance(place[key], dict) and place[key]:
            place = place[key]
            key = rng.choice(list(place))
        place[key] = f"{_MARK} {number}"
    text = json.dumps(events)
    for number, value in enumerate(values):
        text = text.replace(f'"{_MARK} {number}"', value)
    return text


def is_imported(content: bytes, folder: Path) -> bool:
    """Whether it became a recording that can be shown; else it was refused in one line."""
    timeline, run = folder / "timeline.json", folder / "run"
    timeline.write_bytes(content)
    refused = refusal(lambda: main(["import", str(timeline), "-o", str(run), "--size", "4"]))
    if refused is not None:
        assert "\n" not in refused
        assert len(refused) < 500
        assert not run.exists()
        return False
    recording = hvprof.load(run)
    assert recording.size == 4
    for cell in recording.ranks[0].cells:
        assert 0 <= cell.min_s <= cell.max_s
        assert cell.calls > 0
    assert main(["report", str(run), "--json"]) == 0
    return True


@pytest.mark.parametrize("seed", range(CASES))
def test_any_values(seed: int, tmp_path: Path) -> None:
    is_imported(mutated(seed).encode(), tmp_path)


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("key", ["ts", "pid", "name", "start", "shape", "dtype", "ph"])
def test_each_hostile_value(key: str, value: str, tmp_path: Path) -> None:
    events = json.loads(json.dumps([START, *single(1, 0), *single(2, 1000)]))
    event = next(
        event
        for event in reversed(events)
        if key in event or (key == "start" and event is events[0]) or key in event.get("args", {})
    )
    if key == "start":
        event["args"] = {"start_time_since_epoch_in_micros": _MARK}
    else:
        (event["args"] if key in event.get("args", {}) else event)[key] = _MARK
    text = json.dumps(events).replace(f'"{_MARK}"', value)
    is_imported(text.encode(), tmp_path)


@pytest.mark.parametrize("seed", range(CASES))
def test_any_bytes(seed: int, tmp_path: Path) -> None:
    sound = json.dumps([START, *FUSED, *single(1, 2000), *single(2, 3000)]).encode()
    is_imported(damaged(sound, seed), tmp_path)


def test_what_is_sound_is_imported(tmp_path: Path) -> None:
    assert is_imported(json.dumps([START, *FUSED]).encode(), tmp_path)
