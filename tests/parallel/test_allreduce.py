"""The allreduce algorithms at 1 to 8 ranks, and the measurement that writes a table."""

from __future__ import annotations

import json
import os

import pytest

from hvd_ext.allreduce.table import load

HUGE = os.environ.get("HVD_EXT_TEST_HUGE") == "1"


def run(launch, np, program, *arguments, **options):
    done = launch(np, [f"tests/programs/{program}.py", *arguments], **options)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == np, done.stdout


@pytest.mark.parametrize("np", [2, 3])
def test_memory_stays_flat(launch, np):
    run(launch, np, "soak", 20_000 if HUGE else 1_000, timeout=900)


def test_a_table_is_measured_and_read(launch, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "rows": [
                    {"nodes": 9, "ranks_per_node": 1, "memory": "host", "choices": [[0, "ring"]]},
                    {"nodes": 1, "ranks_per_node": 2, "memory": "host", "choices": [[0, "ring"]]},
                ],
            }
        )
    )
    arguments = ["-m", "hvd_ext.allreduce.measure", "-o", path, "--most", "4KiB", "--rounds", 3]
    done = launch(2, arguments)
    assert done.returncode == 0, done.stdout
    table = load(path)
    # What was measured replaces its row that was there, and leaves the other situation's.
    assert [row.nodes for row in table.rows if row.memory == "host"].count(9) == 1
    for dtype_class in ("float", "half", "integer"):
        text = table.explain(1, 2, "host", 1024, dtype_class)
        assert f"1 nodes, 2 ranks per node, host, {dtype_class} dtype" in text
        assert "measured at 1 KiB" in text
        assert "the next best" in text
    assert table.choose(9, 1, "host", 4) == "ring"
    assert {row.memory for row in table.rows if row.nodes == 1} == {"host", "arena"}
    assert list(tmp_path.iterdir()) == [path]
    for part in ("1 nodes, 2 ranks per node, host, half dtype", "native takes", "median error"):
        assert part in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "FOLDER/no/table.json"], "does not exist; make it first"),
        (["-o", "FOLDER/t.json", "--least", "8", "--most", "4"], "--least 8 is more than --most 4"),
        (["-o", "FOLDER/t.json", "--rounds", "0"], "'0' is not a whole number >= 2"),
        (["-o", "FOLDER/bad.json"], "not JSON"),
    ],
)
def test_a_measurement_that_cannot_be_made_is_refused_at_once(launch, tmp_path, arguments, says):
    (tmp_path / "bad.json").write_text("{")
    words = [word.replace("FOLDER", str(tmp_path)) for word in arguments]
    done = launch(2, ["-m", "hvd_ext.allreduce.measure", *words])
    assert done.returncode == 2, done.stdout
    assert done.stdout.count("error: ") == 1, done.stdout
    assert says in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"bad.json"}
