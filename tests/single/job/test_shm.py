"""The node-shared window, as far as it can be looked at without ranks."""

from __future__ import annotations

import re
from pathlib import Path

import hvd_ext.shm
from hvd_ext.dtypes import DTYPES
from hvd_ext.shm.layout import LINE_BYTES
from hvd_ext.shm.library import FORMS
from hvd_ext.shm.window import OPERATIONS

FOLDER = Path(hvd_ext.shm.__file__).parent
SOURCES = "".join(
    (FOLDER / name).read_text("utf-8")
    for name in (
        "kernels/floats.h",
        "kernels/kernels.h",
        "kernels/forms.h",
        "waiting.h",
        "window.c",
    )
)


def found(pattern: str) -> str:
    match = re.search(pattern, SOURCES, re.DOTALL)
    assert match, f"the C sources have nothing like {pattern}"
    return match.group(1)


def test_c_and_python_number_dtypes_and_operations_alike():
    assert re.findall(r"ROW\((\w+)\)", found(r"KERNELS\[\]\[4\] = \{(.*?)\};")) == list(DTYPES)
    assert re.findall(r"(\w+)_##NAME", found(r"#define ROW\(NAME\) \{(.*?)\}")) == list(OPERATIONS)
    names = found(r"enum form \{ (.*?), FORMS \}").lower().split(", ")
    assert tuple(names) == FORMS
    assert int(found(r"FLOAT16 = (\d+)")) == list(DTYPES).index("float16")
    assert int(found(r"BFLOAT16 = (\d+)")) == list(DTYPES).index("bfloat16")


def test_c_and_python_agree_on_sizes():
    sizes = [int(size) for size in found(r"ITEM_BYTES\[\] = \{(.*?)\}").split(",")]
    assert sizes == [dtype.item_bytes for dtype in DTYPES.values()]
    assert int(found(r"LINE = (\d+)")) == LINE_BYTES
