"""Samples on several hosts: what is counted as sent is what the links carry, and no more."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hvd_ext.cli import progress
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import Arrays

HEADERS = 1.04
SAMPLES = 32


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_the_links_carry_what_stores_and_staging_say(build, launch_on, tmp_path, count):
    path = tmp_path / "a.pack"
    array = np.random.default_rng(0).integers(0, 9, (SAMPLES, 2**16), np.int32)
    with progress("packing", shown=False) as advance:
        pack(Arrays({"x": array}), path, advance)
    file_bytes = path.stat().st_size
    with build(count) as hosts:
        done = launch_on(
            hosts, 1, ["tests/programs/data/samples_on_hosts.py", path, "/dev/shm/disk"]
        )
    assert done.returncode == 0, done.stdout
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    kept, staged = found["kept"], found["staged"]
    assert kept["sent_bytes"] == kept["expected_bytes"]
    for sent, wire in zip(kept["sent_bytes"], kept["wire_bytes"], strict=True):
        assert sent <= wire <= HEADERS * sent
    # Of each byte one host reads it, and sends it to the others.
    assert sum(staged["read_bytes"]) == file_bytes
    for read, wire in zip(staged["read_bytes"], staged["wire_bytes"], strict=True):
        assert 0 < (count - 1) * read <= wire <= HEADERS * (count - 1) * read
