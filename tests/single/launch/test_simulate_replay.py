"""What SimGrid makes of traces, and how `tune allreduce` uses it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvd_ext.allreduce.algorithms import ALGORITHMS, NATIVE
from hvd_ext.allreduce.table import Row, Table, dump, load
from hvd_ext.errors import HvdExtError
from hvd_ext.system.mpi_libraries import LIBRARIES
from hvd_ext.system.process import descendants, started
from hvd_ext.units import KIB, MIB
from hvd_launch.simulate import calibration, library, platform, replay, trace
from hvd_launch.simulate.calibration import Sample
from hvd_launch.simulate.platform import Platform

ROOT = Path(__file__).resolve().parents[3]
needs_smpirun = pytest.mark.skipif(
    shutil.which("smpirun") is None, reason="no smpirun: install libsimgrid-dev"
)
# A message of n bytes takes 1 us for each of two links, 1 us on either host, and n + 16 bytes
# of 1 ns: MPI's envelope is 16 bytes.
PLATFORM = Platform(link_gbit=8.0, latency_us=1.0, message_us=1.0, combine_ns=0.5, eager_kib=64.0)


def tune(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hvd_launch", "tune", "allreduce", *arguments]
    env = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'launch'}",
        "PATH": path or f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [*command, "-o", str(folder)], env=env, capture_output=True, text=True, check=False
    )


@needs_smpirun
def test_a_message_takes_what_the_platform_says() -> None:
    # Both send at once: 1 us to send, 2 us of links, 1 us to receive, and to combine.
    time_s = replay.time_s(PLATFORM, 2, 1, "recursive_doubling", 1000)
    assert time_s == pytest.approx((4 + 1.016 + 0.5) * 1e-6, rel=1e-3)
    # A longer one leaves when its receiver is ready, and costs that host nothing more.
    time_s = replay.time_s(PLATFORM, 2, 1, "tree", 64 * KIB)
    assert time_s > 2 * 65.5e-6


@needs_smpirun
def test_a_ring_grows_with_its_ranks_and_a_tree_with_their_logarithm() -> None:
    def time_us(algorithm: str, size: int) -> float:
        return 1e6 * replay.time_s(PLATFORM, size, 1, algorithm, 256)

    ring = [time_us("ring", size) for size in (8, 16, 32)]
    assert (ring[2] - ring[1]) / (ring[1] - ring[0]) == pytest.approx(2, rel=0.05)
    tree = [time_us("tree", size) for size in (8, 16, 32)]
    assert (tree[2] - tree[1]) / (tree[1] - tree[0]) == pytest.approx(1, rel=0.05)


@needs_smpirun
def test_shards_that_share_a_link_are_one_with_its_part(tmp_path: Path) -> None:
    """4 ranks on each of 4 nodes, each in a ring with its like, against one such ring."""
    alone = replay.time_s(PLATFORM, 4, 1, "ring", MIB, link_share=1 / 4)
    folder = tmp_path / "trace"
    folder.mkdir()
    paths = []
    for rank in range(16):
        node, local = divmod(rank, 4)
        lines: list[str] = []
        trace.run("ring", node, 4, MIB, PLATFORM.eager_bytes, lines.append)
        paths.append(folder / str(rank))
        moved = (_moved(line, local) for line in lines)
        paths[-1].write_text("".join((f"{rank} init\n", *moved)))
    listed = folder / "list"
    listed.write_text("".join(f"{path}\n" for path in paths))
    together = replay.replay(PLATFORM, 4, 4, listed)
    assert together == pytest.approx(alone, rel=0.02)


def _moved(line: str, local: int) -> str:
    """A line of a ring of nodes as one of their `local`-th ranks."""
    name, kind, *words = line.split()
    partners = {"wait": 2, "compute": 0}.get(kind, 1)
    moved = [str(4 * int(word) + local) for word in (name, *words[:partners])]
    return " ".join((moved[0], kind, *moved[1:], *words[partners:])) + "\n"


@needs_smpirun
@pytest.mark.parametrize("selector", sorted({one.simulated_as for one in LIBRARIES.values()}))
def test_libraries_choices_are_simulated(selector: str) -> None:
    times_s = library.times_s(PLATFORM, 4, 2, selector, (4 * KIB, MIB))
    assert sorted(times_s) == [4 * KIB, MIB]
    # No allreduce moves fewer bytes through a node's link.
    assert 1.5 * MIB * 1e-9 < times_s[MIB] < 100e-3
    assert times_s[4 * KIB] < times_s[MIB]


@needs_smpirun
@pytest.mark.parametrize("selector", ["mvapich2", "impi"])
def test_quick_introductions_change_no_time(selector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_s = library.times_s(PLATFORM, 32, 1, selector, (4 * KIB, MIB))

    def plainly(*arguments: Any, preloaded: Path) -> str:
        assert preloaded.exists()
        return replay.smpirun(*arguments)

    monkeypatch.setattr(library, "smpirun", plainly)
    assert library.times_s(PLATFORM, 32, 1, selector, (4 * KIB, MIB)) == quick_s


@needs_smpirun
@pytest.mark.long
@pytest.mark.parametrize("tree", [1.0, 0.6], ids=["all samples", "an algorithm that does not fit"])
def test_a_calibration_finds_the_platform_that_made_the_samples(tree: float) -> None:
    true = replace(PLATFORM, byte_ns=0.01, combine_ns=0.5)
    samples = [
        Sample(nodes, name, size, factor * replay.time_s(true, nodes, 1, name, size))
        for nodes in (2, 4)
        for name, factor in {**dict.fromkeys(ALGORITHMS[1:], 1.0), "tree": tree}.items()
        for size in (4 * KIB, 64 * KIB, MIB)
    ]
    steps = []
    found = calibration.calibrate(
        samples, Platform(), lambda completed, note="", total=None: steps.append((completed, total))
    )
    assert found.median_error < 0.02
    assert found.worst_error < (0.02 if tree == 1 else 1)
    assert found.platform.link_gbit == pytest.approx(8, rel=0.05)
    assert found.platform.latency_us + found.platform.message_us == pytest.approx(2, rel=0.1)
    assert steps[-1][0] <= (steps[-1][1] or 0)


@needs_smpirun
def test_smpirun_that_fails_or_is_killed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, _ = trace.write(tmp_path / "trace", "tree", 2, 4, 64)
    (tmp_path / "trace" / "1").write_text("1 init\n1 nonsense\n")
    with pytest.raises(HvdExtError, match=r"^smpirun ended with code [0-9]+: .*nonsense") as caught:
        replay.replay(PLATFORM, 2, 1, listed)
    assert "\n" not in str(caught.value)
    program = tmp_path / "smpirun"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(HvdExtError, match=r"^smpirun ended with code -9: it printed nothing$"):
        replay.time_s(PLATFORM, 2, 1, "tree", 4)


def test_without_smpirun_a_line_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "star.json").write_text("{}")
    words = ("--simulate", str(tmp_path / "star.json"), "--nodes", "4", "--library", "openmpi4")
    done = tune(tmp_path / "tuning", *words, path="/nowhere")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "hvd-launch: error: smpirun: command not found: a simulation needs SimGrid's SMPI, in "
        "Debian's and Ubuntu's package libsimgrid-dev"
    )
    assert not (tmp_path / "tuning").exists()
    # What would be simulated is known without it.
    done = tune(tmp_path / "tuning", *words, "--dry-run", path="/nowhere")
    assert done.returncode == 0, done.stderr
    assert "4 x 1" in done.stdout
    assert "on this machine" in done.stdout
    assert not (tmp_path / "tuning").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--simulate none.json", "platform none.json: No such file"),
        ("--simulate star.json --nodes 1", ">= 2"),
        ("--simulate star.json --nodes 4,x", "'x'"),
        ("--simulate star.json --ranks-per-node 0", ">= 1"),
        ("--simulate star.json --library lam", "SMPI has the choices of openmpi4"),
        ("--simulate star.json --calibrate", "exclude each other: calibrate first"),
        ("", "-np is missing"),
    ],
)
def test_requests_that_cannot_be_meant(words: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "star.json").write_text("{}")
    given = [str(tmp_path / w) if w == "star.json" else w for w in words.split()]
    done = tune(tmp_path / "tuning", *given)
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "tuning").exists()


@needs_smpirun
def test_rows_are_simulated_beside_measured_ones_and_a_second_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "tuning"
    folder.mkdir()
    measured = Row(2, 1, "host", ((0, "ring"),), "float", ((4096, {NATIVE: 9.0, "ring": 1.0}),))
    (folder / "table.json").write_text(dump(Table((measured,), "")))
    (tmp_path / "star.json").write_text(platform.dump(PLATFORM))
    words = ["--simulate", str(tmp_path / "star.json"), "--nodes", "2,4", "--ranks-per-node", "2"]
    words += ["--library", "openmpi4", "--least", "4KiB", "--most", "8KiB", "--json"]
    done = tune(folder, *words)
    assert done.returncode == 0, done.stderr
    rows = load(folder / "table.json").rows
    assert rows[0] == measured
    assert [(row.nodes, row.ranks_per_node) for row in rows[1:]] == [(2, 2), (4, 1), (4, 2)]
    assert all(row.simulated for row in rows[1:])
    assert all(NATIVE in times for row in rows[1:] for _, times in row.measured_us)
    found = json.loads(done.stdout)
    assert found == json.loads((folder / "simulate.json").read_text())
    assert [(row["nodes"], row["ranks_per_node"]) for row in found["rows"]] == [
        (2, 1),
        (2, 2),
        (4, 1),
        (4, 2),
    ]
    # The journal has all: nothing is simulated again.
    lines = (folder / "simulate.jsonl").read_text()
    again = tune(folder, *words)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout
    assert (folder / "simulate.jsonl").read_text() == lines
    # Of another platform: not put together with these.
    (tmp_path / "star.json").write_text(platform.dump(replace(PLATFORM, link_gbit=1)))
    other = tune(folder, *words)
    assert other.returncode == 2
    assert "name another folder with -o, or start over with --fresh" in other.stderr


@needs_smpirun
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_what_is_simulated_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    folder, scratch, programs = tmp_path / "tuning", tmp_path / "scratch", tmp_path / "programs"
    scratch.mkdir()
    programs.mkdir()
    # A simulation that never ends.
    (programs / "smpirun").write_text("#!/bin/sh\nwhile :; do :; done\n")
    (programs / "smpirun").chmod(0o755)
    (tmp_path / "star.json").write_text("{}")
    words = ["--simulate", str(tmp_path / "star.json"), "--nodes", "4"]
    words += ["--library", "mpich", "-o", str(folder)]
    env = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'launch'}",
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(scratch),
    }
    command = [sys.executable, "-m", "hvd_launch", "tune", "allreduce", *words]
    with started(command, env=env, stderr=subprocess.PIPE) as process:
        deadline_s = time.monotonic() + 60
        children: list[int] = []
        while not any(_name(pid) == "smpirun" for pid in children):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
            children = descendants(process.pid)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert not [pid for pid in children if _name(pid) == "smpirun"]
    assert not list(scratch.iterdir())
    assert not (folder / "table.json").exists()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
