"""The algorithm table: choice, explanation, and errors that say where."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.allreduce.algorithms import ALGORITHMS
from hvd_ext.allreduce.rows import choices, merge
from hvd_ext.allreduce.table import (
    BUILT_IN,
    CHOICES,
    MEMORY_KINDS,
    Row,
    Table,
    built_in,
    choices_of,
    dump,
    load,
)
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError

CLASSES = sorted({dtype.dtype_class for dtype in DTYPES.values()})
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
    chosen = {
        n: table.choose(2, 3, "host", n) for n in (0, 4095, 4096, 4097, 65535, 65536, 1 << 40)
    }
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


def test_outside_the_arena_intel_mpi_reduces_itself_where_it_is_faster():
    intel, others = built_in("Intel(R) MPI Library 2021.19"), built_in("Open MPI v4.1.8")
    sizes = (1 << 10, 64 << 10, 4 << 20)
    for memory, chosen in (("host", ["shared_memory", "native", "shared_memory"]), ("arena", None)):
        usual = [others.choose(1, 2, memory, size) for size in sizes]
        assert usual == ["shared_memory"] * 3
        assert [intel.choose(1, 2, memory, size) for size in sizes] == (chosen or usual)
    assert intel.choose(1, 3, "host", 64 << 10) == "shared_memory"


def test_every_name_of_a_table_is_an_algorithm():
    assert set(CHOICES) == {*ALGORITHMS, "shared_memory"}
    for row in (*BUILT_IN.rows, *built_in("Intel(R) MPI Library").rows):
        assert {algorithm for _, algorithm in row.choices} <= set(CHOICES)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nodes": -1}, "row 0: nodes"),
        ({"nodes": True}, "row 0: nodes"),
        ({"memory": "disk"}, "'disk'"),
        ({"choices": []}, "row 0: choices"),
        ({"choices": "ring"}, "row 0: choices"),
        ({"choices": [[0, "native"], [10, "rong"]]}, "choice 1: invalid algorithm 'rong'"),
        ({"choices": [[0, "nccl"]]}, "choice 0: invalid algorithm 'nccl'"),
        ({"choices": [[0, "ring"]], "memory": "device"}, "choice 0: invalid algorithm 'ring'"),
        ({"choices": [[5, "native"]]}, "choice 0"),
        ({"choices": [[0, "native"], [0, "ring"]]}, "choice 1"),
        ({"choices": [[0.5, "native"]]}, "choice 0"),
        ({"choices": [[0]]}, "choice 0"),
        ({"choices": [[0, ["ring"]]]}, "choice 0"),
        ({"dtype_class": "fp32"}, "dtype_class 'fp32'"),
        ({"memory": ["host"]}, "memory"),
        ({"library": 4}, "library 4 must be a text"),
        ({"dtype": "float"}, "unknown field 'dtype'"),
        ({"measured_us": {}}, "measured_us must be"),
        ({"measured_us": [[4, {"ring": "fast"}]]}, "measured_us 0"),
        ({"measured_us": [[4, {}], [4, {}]]}, "measured_us 1"),
    ],
)
def test_an_error_names_the_row_and_the_value(tmp_path, change, says):
    path = write(tmp_path / "t.json", [{**ROW, **change}])
    with pytest.raises(UsageError, match=says) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_an_error_names_the_line(tmp_path):
    path = tmp_path / "t.json"
    good = json.dumps({**ROW, "choices": [[0, "native"]]})
    path.write_text(f'{{"version": 1,\n "rows":\n [{good},\n\n  {{"nodes": 1}}]}}')
    with pytest.raises(UsageError, match="line 5, row 1: nodes"):
        load(path)
    twice = f'"rows": 1,\n "r\\u006fws": [{good},\n {{"nodes": 1}}],\n "x": {{"rows": [1,\n 2, 3]}}'
    path.write_text(f'{{"version": 1, {twice}}}')
    with pytest.raises(UsageError, match="line 3, row 1: nodes"):
        load(path)
    path.write_text(f'{{"version": 1,\n "rows":\n [{good}\n\n  {{"nodes": 1}}]}}')
    with pytest.raises(UsageError, match=r"not JSON: .* line 5"):
        load(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"version": 2, "rows": []}', '{"version": 1}']
)
def test_a_file_that_is_no_table(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"t\.json"):
        load(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "none.json")


MEASURED = {
    **ROW,
    "dtype_class": "half",
    "measured_us": [[4, {"native": 1.5, "ring": 9}], [65536, {"native": 40, "ring": 25.25}]],
}


def test_explain_gives_the_cost_of_the_runner_up(tmp_path):
    table = load(write(tmp_path / "t.json", [MEASURED]))
    text = table.explain(2, 1, "host", 70_000, "half")
    for part in ("takes ring", "at 64 KiB: 25.2 us", "the next best, native, 40 us", "half dtype"):
        assert part in text
    assert "1.5 us" in table.explain(2, 1, "host", 0, "half")
    assert "was not measured" in table.explain(2, 1, "host", 4096, "half")
    assert table.measured_us(2, 1, "host", 65_535, "half") == {"native": 1.5, "ring": 9}
    assert table.measured_us(2, 1, "host", 65_535) == {}
    assert table.choose(2, 1, "host", 70_000, "float") == "native"
    assert "no row" in table.explain(2, 1, "host", 70_000)


def rows_of(memory):
    names = st.sampled_from(choices_of(memory))
    return st.builds(
        Row,
        st.integers(0, 3),
        st.integers(0, 3),
        st.just(memory),
        st.tuples(
            names, st.lists(st.tuples(st.integers(1, 99), names), unique_by=lambda c: c[0])
        ).map(lambda found: ((0, found[0]), *sorted(found[1]))),
        st.sampled_from(["any", *CLASSES]),
        st.lists(
            st.tuples(st.integers(0, 99), st.dictionaries(names, st.integers(0, 999).map(float))),
            unique_by=lambda m: m[0],
        ).map(lambda found: tuple(sorted(found, key=lambda m: m[0]))),
        library=st.sampled_from(["", "Open MPI v4.1.8, package: of a site\n"]),
    )


ROWS = st.sampled_from(MEMORY_KINDS).flatmap(rows_of)
SITUATION = (
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(MEMORY_KINDS),
    st.integers(0, 120),
    st.sampled_from(CLASSES),
)


@given(st.lists(ROWS, max_size=4), *SITUATION)
def test_a_table_is_read_as_it_was_written(
    tmp_path_factory, rows, nodes, ranks_per_node, memory, message_bytes, dtype_class
):
    path = tmp_path_factory.mktemp("tables") / "t.json"
    table = Table(tuple(rows), str(path))
    path.write_text(dump(table))
    assert load(path) == table

    situation = (nodes, ranks_per_node, memory, message_bytes, dtype_class)
    expected = "native"
    for row in rows:
        if row.matches(nodes, ranks_per_node, memory, dtype_class):
            expected = [name for least, name in row.choices if least <= message_bytes][-1]
            break
    assert table.choose(*situation) == table.choose(*situation) == expected
    assert f"takes {expected}" in table.explain(*situation)


def test_native_stays_where_it_was_not_clearly_beaten():
    def around(time_s):  # a spread of some percent, in other rounds for each
        return [time_s * (1 + (7 * number + time_s) % 5 / 100) for number in range(9)]

    native, close, clear, clearer = map(around, (10, 9.9, 8, 7))
    timings = {
        4: {"native": native, "ring": clear, "tree": close},
        8: {"native": native, "ring": clear, "tree": close},
        16: {"native": native, "ring": around(10.2), "tree": around(10.3)},
        32: {"native": native, "ring": around(10.2), "tree": clearer},  # alone
        64: {"native": native, "ring": clearer, "tree": around(10.3)},
        128: {"native": native, "ring": clear, "tree": clearer},  # ring is lasting, tree is not
    }
    assert choices(timings) == ((0, "ring"), (16, "native"), (64, "ring"))
    assert choices({4: timings[4]}) == ((0, "ring"),)
    assert choices({4: {"native": native, "ring": native}}) == ((0, "native"),)


def test_new_rows_replace_those_of_their_situation():
    def row(nodes, dtype_class):
        return Row(nodes, 1, "host", ((0, "native"),), dtype_class)

    old = [row(1, "any"), row(2, "any"), row(1, "half")]
    assert merge([row(1, "float")], old) == (row(1, "float"), row(2, "any"))
