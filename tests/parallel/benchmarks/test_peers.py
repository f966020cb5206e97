"""benchmarks.peers: what it reports of the peers that are installed, and that it verifies sums."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import contenders
from benchmarks.peers.contenders import CONTENDERS, HERE, LIBRARIES
from testbed.ranks import ROOT, environment, hvd_launch

SHORTEST = ["--least", "64", "--most", "64", "--size-s", "0.001", "--rounds", "1"]

# Named by mpi.h, which is included once.
WRONG = """
#define _GNU_SOURCE
#include <mpi.h>
#undef MPI_SUM
#define MPI_SUM MPI_MAX
#include "mpi.c"
"""


@pytest.mark.long
def test_the_shortest_message_of_every_installed_peer(tmp_path: Path) -> None:
    figures = tmp_path / "f.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *SHORTEST, "--json", str(figures)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(figures.read_text())
    there = {name for name in LIBRARIES if contenders.absent(name, None) is None}
    assert "openmpi4" in there
    assert result["absent"].keys() == LIBRARIES.keys() - there
    expected = {name for name, of in CONTENDERS.items() if of.library in there}
    assert result["settings"].keys() == expected
    rows = {(row["dtype"], row["buffer"]): row for row in result["sizes"]}
    assert {buffer for _, buffer in rows} == {"arena", "caller", "empty"}
    for (dtype, _), row in rows.items():
        assert row["message_bytes"] == 64
        assert row["time_us"]["hvd_ext"]["median"] > 0
        assert row["time_us"].keys() <= expected | {"hvd_ext"}
        if dtype == "float32":
            assert row["time_us"].keys() == expected | {"hvd_ext"}
        if row["time_us"].keys() > {"hvd_ext"}:
            best_us = row["time_us"][row["best_peer"]]["median"]
            assert best_us == min(t["median"] for n, t in row["time_us"].items() if n != "hvd_ext")
            ratio = best_us / row["time_us"]["hvd_ext"]["median"]
            assert row["ratio_vs_best_peer"] == pytest.approx(ratio)


def test_a_peers_wrong_sum_ends_its_launch(tmp_path: Path) -> None:
    program, output = tmp_path / "wrong", tmp_path / "times"
    compiler = LIBRARIES["openmpi4"].python.with_name("mpicc")
    source = tmp_path / "wrong.c"
    source.write_text(WRONG)
    command = [compiler, f"-I{HERE}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=100)
    done = subprocess.run(
        [*hvd_launch(2), str(program), str(output), "64", "64", "0.001"],
        env=environment({"OMPI_MCA_mpi_yield_when_idle": "1"}),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 3
    assert "a wrong sum of 16 float32" in done.stdout + done.stderr
