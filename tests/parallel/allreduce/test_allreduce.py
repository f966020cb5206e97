"""The allreduce algorithms at 1 to 8 ranks, and the measurement that writes a table."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hvd_ext import cli
from hvd_ext.allreduce import measure
from hvd_ext.allreduce.table import load

HUGE = os.environ.get("HVD_EXT_TEST_HUGE") == "1"


@pytest.mark.parametrize("np", [pytest.param(2, marks=pytest.mark.long), 3])
def test_memory_stays_flat(launch, np):
    calls = 20_000 if HUGE else 1_000
    done = launch(np, ["tests/programs/allreduce/soak.py", calls], timeout=900)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == np, done.stdout


@pytest.fixture
def folder(comm, tmp_path):
    """One for all ranks."""
    return Path(comm.bcast(str(tmp_path)))


@pytest.fixture
def command(comm, monkeypatch, capsys):
    """Run the command on all ranks: its exit code, and what they printed."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["measure", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.run(measure.main, "hvd_ext.allreduce.measure")
        printed = capsys.readouterr()
        return ended.value.code, "".join(comm.allgather(printed.out + printed.err))

    return run


@pytest.mark.ranks(2)
def test_a_table_is_measured_and_read(comm, folder, command):
    path = folder / "table.json"
    if comm.rank == 0:
        row = {"ranks_per_node": 1, "memory": "host", "choices": [[0, "ring"]]}
        rows = [{**row, "nodes": 9}, {**row, "nodes": 1, "ranks_per_node": 2}]
        path.write_text(json.dumps({"version": 1, "rows": rows}))
    code, printed = command("-o", path, "--most", "4KiB", "--rounds", 3)
    assert code == 0, printed
    table = load(path)
    # What was measured replaces its row that was there, and leaves the other situation's.
    assert [row.nodes for row in table.rows if row.memory == "host"].count(9) == 1
    for dtype_class in ("float", "half", "integer"):
        text = table.explain(1, 2, "host", 1024, dtype_class)
        assert f"1 node, 2 ranks per node, host, {dtype_class} dtype" in text
        assert "measured at 1 KiB" in text
        assert "the next best" in text
    assert table.choose(9, 1, "host", 4) == "ring"
    assert {row.memory for row in table.rows if row.nodes == 1} == {"host", "arena"}
    assert list(folder.iterdir()) == [path]
    for part in ("1 node, 2 ranks per node, host, half dtype", "native takes"):
        assert part in printed


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "FOLDER/no/table.json"], "does not exist; make it first"),
        (["-o", "FOLDER/t.json", "--least", "8", "--most", "4"], "--least 8 is more than --most 4"),
        (["-o", "FOLDER/t.json", "--rounds", "0"], "'0' is not a whole number >= 2"),
        (["-o", "FOLDER/bad.json"], "not JSON"),
    ],
)
def test_a_measurement_that_cannot_be_made_is_refused_at_once(
    comm, folder, command, arguments, says
):
    if comm.rank == 0:
        (folder / "bad.json").write_text("{")
    code, printed = command(*(word.replace("FOLDER", str(folder)) for word in arguments))
    assert code == 2, printed
    assert printed.count("error: ") == 1, printed
    assert says in printed
    assert {path.name for path in folder.iterdir()} == {"bad.json"}
