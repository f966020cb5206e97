"""Which way to read a set: what it needs must be there, and free memory is read right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hvd_ext.cli import progress
from hvd_ext.data.__main__ import main
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import Arrays
from hvd_ext.data.plan import reading_plan
from hvd_ext.system.node_memory import free_bytes, free_memory

GB = 10**9


@pytest.mark.parametrize(
    ("set_gb", "disk_gb", "use", "kept_gb", "read_gb"),
    [
        (60, 0, "packed", 15, 0),
        (61, 0, "store", 15.25, 0),
        (240, 500, "store", 60, 0),
        (241, 500, "staging", 60, 0),
        (480, 100, "store and file", 60, 240),
    ],
)
def test_the_first_that_fits_is_used(
    set_gb: float, disk_gb: float, use: str, kept_gb: float, read_gb: float
) -> None:
    size = int(set_gb * GB)
    plan = reading_plan(size, size + 4096, 4, 100 * GB, int(disk_gb * GB))
    assert plan.use == use
    assert plan.store_bytes == kept_gb * GB
    # A node lacks three quarters of what its ranks need, which is a quarter of what is kept.
    assert plan.sent_bytes == kept_gb * GB * 3 / 4
    assert plan.read_bytes == read_gb * GB


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("packing", shown=False) as advance:
        pack(Arrays({"x": np.zeros((10, 1000), "u1")}), tmp_path / "a.pack", advance)
    words = ["plan", str(tmp_path / "a.pack"), "--nodes", "2", "--memory", "10KB"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["use"], told["set_bytes"], told["store_bytes"]) == ("store", 10_000, 5000)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("store: the set fits 60% of a node's free memory, 5.859 KiB, on 2 nodes")
    assert "4.883 KiB on each of 2 nodes" in out


def test_free_memory_is_that_of_the_control_group_if_it_has_less(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    assert free_bytes(meminfo, tmp_path) == 50 * 1024
    for name, value in {"max": "max", "current": "9000"}.items():
        (tmp_path / f"memory.{name}").write_text(value + "\n")
    (tmp_path / "memory.stat").write_text("anon 5000\ninactive_file 3000\n")
    assert free_bytes(meminfo, tmp_path) == 50 * 1024
    (tmp_path / "memory.max").write_text("20000\n")
    assert free_bytes(meminfo, tmp_path) == 20000 - 9000 + 3000
    (tmp_path / "memory.stat").write_text("anon 5000\ninactive_file 3000\nactive_file 500\n")
    found = free_memory(meminfo, tmp_path)
    assert found == (20000 - 9000 + 3500, f"the memory limit of {tmp_path}")
