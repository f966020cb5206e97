"""Traces, platforms and rows of simulated clusters; nothing here needs SimGrid."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_ext.allreduce.algorithms import ALGORITHMS, NATIVE
from hvd_ext.allreduce.table import Row, Table, dump, load
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.units import GIB, KIB, MIB
from hvd_launch.simulate import calibration, cases, platform, trace
from hvd_launch.simulate.cases import Situation
from hvd_launch.simulate.platform import Platform

OURS = [name for name in ALGORITHMS if name != NATIVE]


def lines_of(
    algorithm: str, size: int, message_bytes: int, eager_bytes: int = 0
) -> list[list[str]]:
    """Every rank's lines; no message leaves before its receiver is ready."""
    found: list[list[str]] = [[] for _ in range(size)]
    for rank in range(size):
        trace.run(algorithm, rank, size, message_bytes, eager_bytes, found[rank].append)
    return found


def test_the_lines_of_two_ranks_are_the_algorithm() -> None:
    first, second = lines_of("recursive_doubling", 2, 8)
    assert first == [
        "0 irecv 1 1 8\n",
        "0 isend 1 1 8\n",
        "0 wait 1 0 1\n",
        "0 wait 0 1 1\n",
        "0 compute 8\n",
    ]
    assert second == [
        "1 irecv 0 1 8\n",
        "1 isend 0 1 8\n",
        "1 wait 0 1 1\n",
        "1 wait 1 0 1\n",
        "1 compute 8\n",
    ]


def test_an_eager_message_is_one_line() -> None:
    first, _ = lines_of("recursive_doubling", 2, 8, eager_bytes=9)
    assert first == ["0 irecv 1 1 8\n", "0 send 1 1 8\n", "0 wait 1 0 1\n", "0 compute 8\n"]
    first, _ = lines_of("recursive_doubling", 2, 8, eager_bytes=8)
    assert "0 isend 1 1 8\n" in first


@pytest.mark.parametrize("size", [2, 3, 7, 16, 17])
@pytest.mark.parametrize("algorithm", OURS)
def test_what_is_sent_is_received_and_waited_for(algorithm: str, size: int) -> None:
    for message_bytes in (4, 1000 * 4, MIB + 12):
        sent: Counter[tuple[str, ...]] = Counter()
        received: Counter[tuple[str, ...]] = Counter()
        for rank, lines in enumerate(lines_of(algorithm, size, message_bytes)):
            begun: Counter[tuple[str, ...]] = Counter()
            for line in lines:
                name, kind, *words = line.split()
                assert name == str(rank)
                if kind == "isend":
                    sent[(name, *words)] += 1
                    begun[name, words[0], words[1]] += 1
                elif kind == "irecv":
                    received[(words[0], name, *words[1:])] += 1
                    begun[words[0], name, words[1]] += 1
                elif kind == "wait":
                    begun[tuple(words)] -= 1
                    assert begun[tuple(words)] >= 0
            assert not +begun
        assert sent == received


def test_files_are_a_rank_each_and_small_ones_are_estimated_well(tmp_path: Path) -> None:
    for algorithm in OURS:
        listed, total = trace.write(tmp_path / algorithm, algorithm, 12, MIB, 64 * KIB)
        paths = list(map(Path, listed.read_text().split()))
        assert len(paths) == 12
        assert total == sum(path.stat().st_size for path in paths)
        for rank, path in enumerate(paths):
            lines = path.read_text().splitlines()
            assert (lines[0], lines[-1]) == (f"{rank} init", f"{rank} finalize")
        expected = trace.estimate(algorithm, 12, MIB, 64 * KIB).total_bytes
        assert total / 2 < expected < 2 * total


def test_a_trace_of_4096_ranks_stays_below_the_limit_and_a_larger_one_is_refused() -> None:
    for algorithm in OURS:
        if algorithm != "direct":
            assert trace.check(algorithm, 4096, 4 * KIB, 64 * KIB).total_bytes < 2 * GIB
    with pytest.raises(UsageError, match=r"ring, 4096 ranks, 4 GiB would have [0-9.]+ GiB, more"):
        trace.check("ring", 4096, 4 * GIB, 64 * KIB)
    with pytest.raises(UsageError, match="4097 ranks: a trace has at most 4096"):
        trace.check("ring", 4097, 4, 64 * KIB)


def test_a_trace_that_grows_too_large_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MOST_BYTES", 1000)
    monkeypatch.setattr(trace, "estimate", lambda *_: trace.Extent(1, 1))
    with pytest.raises(UsageError, match=r"at rank [0-9]+ of 8: simulate fewer ranks"):
        trace.write(tmp_path / "trace", "ring", 8, MIB, 0)
    assert not list(tmp_path.iterdir())
    with pytest.raises(HvdExtError, match="cannot make the folder"):
        trace.write(Path("/proc/none"), "tree", 8, 4, 0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "must be an object"),
        ('{"bandwidth": 1}', "unknown field 'bandwidth': use topology"),
        ('{"topology": "ring"}', "topology 'ring': use one of star, fat_tree, dragonfly"),
        ('{"link_gbit": 0}', "link_gbit 0: must be above 0"),
        ('{"link_gbit": NaN}', "link_gbit nan"),
        ('{"latency_us": "1"}', "latency_us '1': must be a number"),
        ('{"latency_us": true}', "latency_us True: must be a number"),
        ('{"nodes_per_switch": 1.5}', "nodes_per_switch 1.5: must be a whole number"),
        ('{"tapering": 0.5}', "tapering 0.5: must be at least 1"),
    ],
)
def test_a_platform_that_cannot_be(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "platform.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        platform.load(path)
    assert str(caught.value).startswith(f"platform {path}: ")
    assert complaint in str(caught.value)


def test_a_platform_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "platform.json"
    written = Platform("fat_tree", link_gbit=25, tapering=2.0)
    path.write_text(platform.dump(written))
    assert platform.load(path) == written
    path.write_text(json.dumps({"link_gbit": 25}))
    assert platform.load(path) == Platform(link_gbit=25)
    with pytest.raises(UsageError, match="No such file"):
        platform.load(tmp_path / "none.json")


def test_topologies_hold_the_nodes() -> None:
    assert 'radical="0-99"' in Platform().xml(100, 1)
    tree = Platform("fat_tree", nodes_per_switch=16, tapering=4.0).xml(100, 1)
    assert 'topo_parameters="2;16,7;1,4;1,1"' in tree
    assert 'radical="0-111"' in tree
    # On one switch both are a star.
    assert "topology" not in Platform("fat_tree").xml(32, 1)
    fly = Platform("dragonfly", nodes_per_switch=4, switches_per_chassis=16, chassis_per_group=4)
    assert 'topo_parameters="16,1;4,1;16,1;4"' in fly.xml(4096, 1)
    with pytest.raises(UsageError, match="4097 nodes: a dragonfly has a link between any two"):
        fly.xml(4097, 1)


def test_rows_take_the_fastest_and_the_librarys_own_where_it_is_as_good() -> None:
    times = {
        4096: {NATIVE: 10e-6, "tree": 9.9e-6, "ring": 50e-6},
        65536: {NATIVE: 30e-6, "tree": 40e-6, "ring": 20e-6},
        MIB: {NATIVE: 300e-6, "ring": 200e-6},
    }
    row = cases.make_row(Platform(), Situation(64, 1, 4), times)
    assert row.choices == ((0, NATIVE), (65536, "ring"))
    assert (row.nodes, row.ranks_per_node, row.memory) == (64, 1, "host")
    assert row.simulated == "star of 100 Gbit/s, 0.5 us a link"
    assert row.measured_us[0] == (4096, pytest.approx({NATIVE: 10, "tree": 9.9, "ring": 50}))


def test_a_simulated_row_is_read_back_and_explained_as_such(tmp_path: Path) -> None:
    row = cases.make_row(Platform(), Situation(64, 1, 4), {4096: {NATIVE: 1e-5, "tree": 5e-6}})
    path = tmp_path / "table.json"
    path.write_text(dump(Table((row,), str(path))))
    table = load(path)
    assert table.rows == (row,)
    assert "; simulated at 4 KiB: 5 us, the next best, native, 10 us" in table.explain(
        64, 1, "host", 8192
    )
    path.write_text(path.read_text().replace(json.dumps(row.simulated), "1"))
    with pytest.raises(UsageError, match="simulated 1 must be a text"):
        load(path)


def test_simulated_rows_never_replace_measured_ones() -> None:
    def row(nodes: int, simulated: str = "", ranks: int = 1) -> Row:
        return Row(nodes, ranks, "host", ((0, "ring"),), simulated=simulated)

    old = [row(2), row(64, "old"), row(512, "old"), row(0, ranks=0)]
    new = [row(2, "new"), row(64, "new"), row(128, "new")]
    assert cases.merge(new, old) == (
        row(2),
        row(64, "new"),
        row(128, "new"),
        row(512, "old"),
        # A row for any number of nodes would match before it.
        row(0, ranks=0),
    )


def test_what_has_no_chance_or_is_too_large_is_not_simulated() -> None:
    good, large = cases.situations((64, 2048), 4)
    assert good == [Situation(64, 1, 4), Situation(64, 4, 1), Situation(2048, 1, 4)]
    assert large == [Situation(2048, 4, 1)]
    found, refused = cases.plan(Platform(), Situation(1024, 1, 1), (4096, 64 * MIB))
    short = {case.algorithm for case in found if case.message_bytes == 4096}
    long = {case.algorithm for case in found if case.message_bytes == 64 * MIB}
    assert "ring" not in short
    assert {"recursive_doubling", "tree"} <= short
    assert "ring" in long
    assert "tree" not in long
    # Its messages are all under way at once, which a simulator pays for.
    assert "direct" not in long
    assert any(line.startswith("direct, 1024 ranks, 64 MiB would take") for line in refused)
    assert [case.expected_s for case in found] == sorted(case.expected_s for case in found)


def test_calibration_takes_measured_rows_of_2_and_4_nodes_alone() -> None:
    measured = ((4096, {NATIVE: 1.0, "ring": 2.0}),)
    good = Row(2, 1, "host", ((0, "ring"),), "float", measured)
    rows = [
        good,
        replace(good, nodes=8),
        replace(good, ranks_per_node=2),
        replace(good, dtype_class="half"),
        replace(good, nodes=4, simulated="star"),
    ]
    assert calibration.samples_of(rows) == [calibration.Sample(2, "ring", 4096, 2e-6)]
    with pytest.raises(UsageError, match="no times of 2 or 4 nodes"):
        calibration.samples_of(rows[1:])
