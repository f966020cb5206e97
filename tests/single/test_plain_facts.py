"""errors, units, metrics, events: what everything else leans on."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext import CommEvent, UsageError, listen
from hvd_ext.arithmetic.metrics import algbw_gb_s, busbw_gb_s
from hvd_ext.events import emit
from hvd_ext.units import counted, format_bytes, format_seconds, parse_bytes
from testbed.ranks import ROOT


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1 KiB", 1024),
        ("1.5kb", 1500),
        ("64 MiB", 64 << 20),
        ("2GB", 2e9),
    ],
)
def test_parse_bytes(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "x", "-1", "1 mm", "1 KiB 2", "nan", "1e3"])
def test_parse_bytes_refuses(text):
    with pytest.raises(UsageError, match="invalid size"):
        parse_bytes(text)


@given(st.integers(0, 2**50))
def test_format_bytes_reads_back(count):
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=1e-3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(2, "2 s"), (0.00213, "2.13 ms"), (5e-6, "5 us"), (3e-9, "3 ns")],
        *[(0.000_999_9, "1 ms"), (0.9996, "1 s"), (999.6, "1000 s"), (1234, "1234 s")],
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_numbers_of_things():
    assert [counted(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert counted(2, "rank has", "ranks have") == "2 ranks have"


# A count written otherwise says "1 ranks" sooner or later.
def test_plurals_are_made_in_one_place():
    own = re.compile(r"""["']s["'] \* |["']1 \w+["'] if """)
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("hvd_ext", "profiling", "launch", "training")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text().splitlines()
        if own.search(line)
    ]
    assert not found, "use hvd_ext.units.counted: " + "; ".join(found)


def test_bandwidths():
    assert algbw_gb_s(10**9, 0.5) == 2.0
    assert algbw_gb_s(10**9, 0.0) == 0.0
    # 4 ranks: an allreduce moves 2 * 3/4 of its payload through every rank.
    assert busbw_gb_s("allreduce", 10**9, 0.5, 4) == pytest.approx(3.0)
    assert busbw_gb_s("allgather", 10**9, 0.5, 4) == pytest.approx(1.5)
    assert busbw_gb_s("broadcast", 10**9, 0.5, 4) == pytest.approx(2.0)
    assert busbw_gb_s("allreduce", 10**9, 0.5, 1) == 0.0


def test_listeners_hear_until_they_stop():
    event = CommEvent("allreduce", "ring", 8, 2, 0.0, 0.0, 1e-6)
    heard: list[CommEvent] = []
    stop = listen(heard.append)
    emit(event)
    stop()
    emit(event)
    assert heard == [event]


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("raise UsageError('no such thing')", 2, "prog: error: no such thing\n"),
        ("raise StallError('rank 3')", 75, "prog: error: rank 3\n"),
        ("raise KeyboardInterrupt", 130, "prog: interrupted\n"),
        ("return 7", 7, ""),
    ],
)
def test_errors_become_one_line_and_a_code(body, code, says):
    program = (
        "from hvd_ext.errors import *\nfrom hvd_ext.cli import run\n"
        f"def main(arguments):\n    {body}\nrun(main, 'prog')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, says)
