"""The layout that Python reads is the one that C writes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvprof.format import bins, layout
from hvprof.format.key import (
    OTHER_PARTNERS,
    PARTNER,
    REGION,
    SOURCES,
    TRAFFIC,
    Key,
    decode,
    decode_all,
    encode,
)
from tests.support.hvprof.recorded import RECORDER

STRUCTS = {
    "step": layout.STEP,
    "offset": layout.OFFSET,
    "run_usage": layout.USAGE,
    "machine": layout.MACHINE,
    "communicator": layout.COMMUNICATOR,
    "cell": layout.CELL,
    "event": layout.EVENT,
    "slot": layout.SLOT,
    "connection": layout.CONNECTION,
    "beat": layout.BEAT,
    "current": layout.CURRENT,
    "site": layout.SITE,
    "sent": layout.MESSAGE,
    "sites": layout.SITES_FILE,
}
# What Python calls otherwise.
RENAMED = {"cells": "cells_end", "communicators": "communicators_end"}
NUMBERS = {
    "VERSION": layout.VERSION,
    "NAMES": layout.NAMES,
    "NAME_BYTES": layout.NAME_BYTES,
    "COMMUNICATORS": layout.COMMUNICATORS,
    "STEPS": layout.STEPS,
    "CELLS": layout.MOST_CELLS,
    "BLOCKS": layout.BLOCKS,
    "BUCKETS": bins.BUCKETS,
    "TRANSPORT": TRAFFIC.index("transport"),
    "TUNING": TRAFFIC.index("tuning"),
    "REGION": REGION,
    "PARTNER": PARTNER,
    "OTHER_PARTNERS": OTHER_PARTNERS,
    "SOURCE_PROGRAM": SOURCES.index("program"),
    "SENT": layout.SENT,
    "CURRENT_VERSION": layout.CURRENT_VERSION,
    "SLOTS": layout.SLOTS,
    "SITES_VERSION": layout.SITES_VERSION,
    "SITES": layout.SITES,
    "OBJECTS": layout.OBJECTS,
    "LATEST": layout.LATEST,
    "IN_CALL": layout.IN_CALL,
    "LATE": layout.LATE,
    "SUBMITTED": layout.SUBMITTED,
    "CONNECTIONS": layout.CONNECTIONS,
    "ADDRESSES": layout.ADDRESSES,
    "COORDINATION": layout.COORDINATION,
    "COLLECTIVE_CALL": layout.COLLECTIVE_CALL,
    "REPORTED": layout.REPORTED,
    "BY_NAME": layout.BY_NAME,
    "HOLDS_LOCK": layout.HOLDS_LOCK,
    "NO_CARRIER": layout.NO_CARRIER,
    "-NO_PEER": -layout.NO_PEER,
    "-ANY_PEER": -layout.ANY_PEER,
    "EXITED": layout.STATES.index("exited"),
}
KEYS = st.builds(Key, *(st.integers(0, 2**bits - 1) for bits in (8, 8, 8, 3, 2, 8, 8, 18)))
SIZES = (0, 1, 2, 3, 1023, 1024, 1025, 2**40 + 1)
TIMES = (0, 31, 32, 33, 1000, 10**9, 2**63)


def printed(tmp_path: Path, lines: list[str]) -> list[int]:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) on PATH")
    source, program = tmp_path / "format.c", tmp_path / "format"
    body = "\n".join(f'    printf("%llu\\n", (unsigned long long)({line}));' for line in lines)
    source.write_text(
        f'#include "{RECORDER}/format.h"\n#include <stdio.h>\nint main(void)\n{{\n{body}\n}}\n'
    )
    subprocess.run(["cc", source, "-o", program], check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


def test_offsets_and_sizes(tmp_path: Path) -> None:
    expected: dict[str, int] = dict(NUMBERS)
    for struct, dtype in STRUCTS.items():
        expected[f"sizeof(struct {struct})"] = dtype.itemsize
        for name, (_, offset, *_) in (dtype.fields or {}).items():
            expected[f"offsetof(struct {struct}, {name})"] = offset
    for name, (_, offset, *_) in (layout.HEADER.fields or {}).items():
        expected[f"offsetof(struct recording, {RENAMED.get(name, name)})"] = offset
    for name, (_, offset, *_) in (layout.FIXED.fields or {}).items():
        if name != "header":
            expected[f"offsetof(struct recording, {name})"] = offset
    expected["offsetof(struct recording, cells)"] = layout.FIXED.itemsize
    assert dict(zip(expected, printed(tmp_path, list(expected)), strict=True)) == expected


def test_keys_and_bins(tmp_path: Path) -> None:
    key = Key(201, 102, bins.bin_index(5000), 2, 1, 254, 127, 2**18 - 1)
    kind = (
        "(struct kind){.operation = 201, .algorithm = 102, .traffic = TRANSPORT, "
        ".source = SOURCE_HVD_EXT, .datatype = 254, .communicator = 127, .partner = OTHER_PARTNERS}"
    )
    expected = {f"cell_key({kind}, 5000)": encode(key)}
    expected |= {f"size_bin({size}ull)": bins.bin_index(size) for size in SIZES}
    expected |= {f"time_bucket({time}ull)": bins.bucket_index(time) for time in TIMES}
    assert dict(zip(expected, printed(tmp_path, list(expected)), strict=True)) == expected


@given(st.lists(KEYS, min_size=1))
def test_a_key_is_decoded_as_it_was_encoded(keys: list[Key]) -> None:
    packed = [encode(key) for key in keys]
    assert [decode(one) for one in packed] == keys
    columns = decode_all(np.array(packed, "<u8"))
    assert [Key(*row) for row in zip(*(columns[name] for name in Key._fields), strict=True)] == keys


def test_each_header_includes_what_it_needs(tmp_path: Path) -> None:
    for header in sorted(RECORDER.rglob("*.h")):
        # Lists of macro calls, which are included twice on purpose, and a linker's script.
        if header.name not in ("operations.h", "others.h", "symbols.h", "script.h"):
            command = ["cc", "-D_GNU_SOURCE", "-fsyntax-only", "-x", "c", header]
            subprocess.run(command, check=True)
