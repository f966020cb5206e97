"""Tables of algorithms that are damaged or crafted: read as they are meant, or one line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hvd_ext.allreduce.table import Table, dump, load
from hvd_ext.errors import UsageError
from tests.fuzz.damage import CASES, damaged

TABLE = """{"version": 1, "rows": [
  {"nodes": 2, "ranks_per_node": 4, "memory": "host", "dtype_class": "float",
   "choices": [[0, "native"], [65536, "rabenseifner"], [4194304, "ring"]],
   "measured_us": [[65536, {"native": 212.0, "ring": 290.1, "rabenseifner": 160.4}]]},
  {"nodes": 0, "ranks_per_node": 0, "memory": "arena", "choices": [[0, "shared_memory"]]}
]}
"""
# Written as they stand in a file: JSON knows no NaN, and Python's reader does.
HOSTILE = [
    "NaN",
    "Infinity",
    "-1",
    "1" * 400,
    "1" * 5000,
    "1.5",
    "null",
    "true",
    '"x\\u0000"',
    "[]",
]
HOSTILE += ["{}", '{"rows": []}', "[" * 2000 + "]" * 2000, "1e999", '"ring"', "9223372036854775808"]


def use(path: Path) -> None:
    """Read a table and ask it what a job asks; each answer comes, or the reading is refused."""
    try:
        table = load(path)
    except UsageError as error:
        message = str(error)
        assert message.startswith(f"table {path}")
        assert "\n" not in message
        return
    assert isinstance(table, Table)
    for nodes, ranks in ((1, 2), (2, 4)):
        for size in (0, 4, 65536, 1 << 40):
            for memory in ("arena", "host"):
                table.choose(nodes, ranks, memory, size, "float")
                assert table.explain(nodes, ranks, memory, size, "float")
    path.write_text(dump(table))
    assert load(path).rows == load(path).rows


@pytest.mark.parametrize("seed", range(CASES))
def test_a_damaged_table_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(damaged(TABLE.encode(), seed))
    use(path)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a document, as a container and a key."""
    found = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        found.append((value, key))
        if isinstance(item, dict | list):
            found += places(item)
    return found


@pytest.mark.parametrize("seed", range(CASES))
def test_a_crafted_table_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    document = json.loads(TABLE)
    marks = {}
    for number in range(rng.randint(1, 2)):
        container, key = rng.choice(places(document))
        mark = f"@{number}@"
        marks[json.dumps(mark)] = rng.choice(HOSTILE)
        container[key] = mark
    text = json.dumps(document)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    if rng.random() < 0.2:
        text = text.replace('"rows"', '"\\u0072ows"')
    path = tmp_path / "table.json"
    path.write_text(text)
    use(path)
