"""Damaged recordings: a report or one clear line, never a traceback, a hang or silent damage."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hvprof
from hvprof.cli import main
from hvprof.format.key import Key, encode
from hvprof.format.layout import EVENT, SITES_FILE, SITES_MAGIC, SITES_VERSION, VERSION
from hvprof.format.sites import places_of
from hvprof.format.writer import write_rank
from tests.fuzz.damage import CASES, damaged, refusal
from tests.support.hvprof.made_recordings import put_current, write_job

CALLS = 60


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of two ranks with traces, with and without steps, and a report of one."""
    folder = tmp_path_factory.mktemp("sound")
    for name in ("run", "steps"):
        write_recording(folder / name, has_steps=name == "steps")
    assert main(["report", str(folder / "steps"), "--html", str(folder / "report.html")]) == 0
    return folder


def write_recording(run: Path, *, has_steps: bool) -> None:
    none: dict[str, Any] = {} if has_steps else {"steps": (), "step_count": 0, "all_steps": None}
    for rank in hvprof.load(write_job(run, 2, steps=40)).ranks:
        traced = dataclasses.replace(rank, trace_capacity=CALLS, trace_calls=CALLS, **none)
        if rank.rank and not has_steps:  # its last call is in its file of current calls
            traced = dataclasses.replace(traced, state="unfinished", end_unix_s=None)
        write_rank(run, traced)
        put_current(run, rank.rank)
        ring = np.zeros(CALLS + 1, EVENT)
        key = encode(Key(2, 1, size_bin=45))
        for call in range(1, CALLS + 1):
            begin = 10**9 + 10**6 * call
            ring[call] = (call, begin, begin + 10**5, 0, key, 4096, call, 7, -1, 0)
        head = b"hvtrace\n" + np.array([VERSION, rank.rank], "<u4").tobytes()
        trace = head.ljust(EVENT.itemsize, b"\0") + ring[1:].tobytes()
        (run / f"rank-{rank.rank:05d}.trace").write_bytes(trace)
        (run / f"rank-{rank.rank:05d}.sites").write_bytes(call_sites(rank.rank))


def call_sites(rank: int) -> bytes:
    """A file of them: one without a place, two of a library that is not there, one of Python's."""
    made = np.zeros(1, SITES_FILE)
    made["magic"], made["version"], made["rank"] = SITES_MAGIC, SITES_VERSION, rank
    made["objects"][0, 0] = b"/opt/lib/libsolver.so"
    for place in range(4):
        made["at"][0, place] = (
            *(place and place << 56 | 4096, 4096 * place, place, min(place, 1), 10),
            *(10**8, 10**7, 40 * (place == 3), 0, b""),
        )
    return made.tobytes()


def is_accepted(*words: str | Path) -> bool:
    """Whether a command succeeds; else it ends with one line."""
    refused = refusal(lambda: main(list(map(str, words))))
    assert "\n" not in (refused or "")
    return refused is None


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return [number for one in inside for number in numbers(one)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize("seed", range(CASES))
def test_a_damaged_recording(
    seed: int, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    # What follows from steps takes seconds to compute: in one case of ten.
    shutil.copytree(sound / ("run" if seed % 10 else "steps"), run)
    path = sorted(run.iterdir())[seed % len(list(run.iterdir()))]
    content = path.read_bytes()
    # Most of a rank's file is room for steps: its beginning and its end are what is in use.
    used = content[:20_000] if seed % 2 else content[-8_000:]
    at = content.index(used)
    path.write_bytes(content[:at] + damaged(used, seed) + content[at + len(used) :])
    capsys.readouterr()
    if is_accepted("report", run, "--json"):
        report = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert all(map(math.isfinite, numbers(report)))
        # What is gone is not passed over: both ranks are there, or the report names the other.
        assert is_accepted("report", run)
        printed = capsys.readouterr().out
        assert len(report["ranks"]) == report["size"] or "no recording of rank" in printed
        places_of(site for rank in hvprof.load(run).ranks for site in rank.sites)
    # Comparisons take longest: one command a seed.
    commands: tuple[tuple[str | Path, ...], ...] = (
        ("report", run, "--html", tmp_path / "a.html", "--trace", tmp_path / "a.json"),
        ("compare", sound / "run", run),
        ("check", run, sound / "run", "--max-regression", "5%", "--json"),
        ("limits", run),
        ("hang", run, "--json"),
        ("watch", run, "--once"),
    )
    is_accepted(*commands[seed // 2 % len(commands)])


@pytest.mark.parametrize("seed", range(CASES))
def test_a_damaged_report(
    seed: int, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (sound / "report.html").read_bytes()
    data = page.index(b'id="hvprof-data"')
    path = tmp_path / "report.html"
    path.write_bytes(page[:data] + damaged(page[data:], seed))
    capsys.readouterr()
    if is_accepted("compare", sound / "report.html", path, "--json"):
        report = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert all(map(math.isfinite, numbers(report)))


def test_a_call_site_of_a_pipe_is_not_waited_for(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound / "run", tmp_path / "run")
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "run" / "rank-00000.sites"
    file = np.frombuffer(bytearray(path.read_bytes()), SITES_FILE)
    file["objects"][0, 0] = str(tmp_path / "pipe").encode()
    path.write_bytes(file.tobytes())
    assert is_accepted("report", tmp_path / "run")


@pytest.mark.parametrize("name", ["rank-00000.hvprof", "rank-00001.trace", "rank-00000.sites"])
def test_a_file_that_is_cut_anywhere_is_refused(name: str, sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound / "run", tmp_path / "run")
    content = (sound / "run" / name).read_bytes()
    for bytes_left in range(0, len(content), len(content) // CASES):
        (tmp_path / "run" / name).write_bytes(content[:bytes_left])
        assert not is_accepted("report", tmp_path / "run", "--trace", tmp_path / "a.json")
