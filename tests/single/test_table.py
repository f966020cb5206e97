"""The algorithm table: choice, explanation, and errors that say where."""

from __future__ import annotations

import json

import pytest

from hvd_ext.allreduce.registry import ALGORITHMS
from hvd_ext.allreduce.table import ALGORITHMS as NAMES
from hvd_ext.allreduce.table import BUILT_IN, load
from hvd_ext.errors import UsageError

ROW = {
    "nodes": 2,
    "ranks_per_node": 0,
    "memory": "host",
    "choices": [[0, "native"], [4096, "recursive_doubling"], [65536, "ring"]],
}


def write(path, rows, version=1):
    path.write_text(json.dumps({"version": version, "rows": rows}))
    return path


def test_nearest_lower_size_wins(tmp_path):
    table = load(write(tmp_path / "t.json", [ROW]))
    chosen = {n: table.choose(2, 3, "host", n) for n in (0, 4095, 4096, 4097, 65535, 65536, 1 << 40)}
    assert chosen == {
        0: "native",
        4095: "native",
        4096: "recursive_doubling",
        4097: "recursive_doubling",
        65535: "recursive_doubling",
        65536: "ring",
        1 << 40: "ring",
    }
    assert table.choose(3, 3, "host", 65536) == "native"
    assert table.choose(2, 3, "arena", 65536) == "native"


def test_explain_names_choice_row_and_file(tmp_path):
    path = write(tmp_path / "t.json", [ROW])
    text = load(path).explain(2, 1, "host", 5000)
    for part in ("recursive_doubling", "row 0", str(path), "4 KiB"):
        assert part in text
    assert "no row" in load(path).explain(9, 1, "host", 5000)


def test_every_name_of_a_table_is_an_algorithm():
    assert set(NAMES) == {*ALGORITHMS, "hierarchical"}
    for row in BUILT_IN.rows:
        assert {algorithm for _, algorithm in row.choices} <= set(NAMES)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nodes": -1}, "row 0: nodes"),
        ({"nodes": True}, "row 0: nodes"),
        ({"memory": "disk"}, "'disk'"),
        ({"choices": []}, "row 0: choices"),
        ({"choices": "ring"}, "row 0: choices"),
        ({"choices": [[0, "native"], [10, "rong"]]}, "choice 1: 'rong'"),
        ({"choices": [[5, "native"]]}, "choice 0"),
        ({"choices": [[0, "native"], [0, "ring"]]}, "choice 1"),
        ({"choices": [[0.5, "native"]]}, "choice 0"),
        ({"choices": [[0]]}, "choice 0"),
    ],
)
def test_an_error_names_the_row_and_the_value(tmp_path, change, says):
    path = write(tmp_path / "t.json", [{**ROW, **change}])
    with pytest.raises(UsageError, match=says) as caught:
        load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 2, "rows": []}', '{"version": 1}'])
def test_a_file_that_is_no_table(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"t\.json"):
        load(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "none.json")
