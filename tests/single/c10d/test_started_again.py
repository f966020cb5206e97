"""Which commands start a script again, and what becomes of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hvd_ext.c10d.started_again import _through

PYTHON, M = sys.executable, ["-m", "hvd_ext.c10d"]


@pytest.mark.parametrize(
    ("command", "becomes"),
    [
        ([PYTHON, "train.py", "--x"], [PYTHON, *M, "train.py", "--x"]),
        ((PYTHON, "-u", Path("train.py")), [PYTHON, "-u", *M, "train.py"]),
        ([PYTHON, f"{Path.cwd()}/train.py"], [PYTHON, *M, f"{Path.cwd()}/train.py"]),
        ([PYTHON, *M, "train.py"], None),
        ([PYTHON, "other.py", "train.py"], None),
        ([PYTHON, "-m", "train.py"], None),
        ([PYTHON, "-c", "train.py"], None),
        ([PYTHON], None),
        ([PYTHON, "-u"], None),
        (["python-of-others", "train.py"], None),
        ([], None),
        ("python train.py", None),
        (Path(PYTHON), None),
    ],
)
def test_a_script_is_started_through_the_module(command: Any, becomes: Any) -> None:
    assert _through("hvd_ext.c10d", "train.py", False, command) == (becomes or command)


@pytest.mark.parametrize(
    ("command", "becomes"),
    [
        ([PYTHON, "-m", "train", "x"], [PYTHON, *M, "-m", "train", "x"]),
        ([PYTHON, *M, "-m", "train"], None),
        ([PYTHON, "-m", "other"], None),
        ([PYTHON, "train"], None),
        ([PYTHON, "-m"], None),
    ],
)
def test_a_module_is_started_through_the_module(command: Any, becomes: Any) -> None:
    assert _through("hvd_ext.c10d", "train", True, command) == (becomes or command)
