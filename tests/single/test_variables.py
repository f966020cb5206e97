"""Environment variables: the table is complete, docs show it, and a misspelt name is reported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_ext.variables import VARIABLES, misspelt, table
from testbed.ranks import ROOT, environment

NAMES = {variable.name for variable in VARIABLES}
FOLDERS = ("hvd_ext", "profiling", "launch", "training", "edsr", "resnet", "mesh", "cosmoflow")


def named_in(path: Path) -> set[str]:
    """Variables that a file names; a C header's guard is none."""
    names = re.findall(r"\b(?:HVD_EXT|HVPROF|HVD_LAUNCH)_[A-Z0-9_]*[A-Z0-9]\b", path.read_text())
    return {name for name in names if not name.endswith("_H") and "_TEST" not in name}


def test_the_table_has_every_variable_that_the_code_names() -> None:
    found: set[str] = set()
    for folder in FOLDERS:
        for kind in ("*.py", "*.c", "*.h"):
            for path in (ROOT / folder).rglob(kind):
                # A program's header has constants of that name.
                if path.name not in ("variables.py", "hvprof.h"):
                    found |= named_in(path)
    assert found == NAMES


def test_docs_show_the_table() -> None:
    assert table() in (ROOT / "docs" / "reference" / "variables.md").read_text()


def test_a_misspelt_variable_is_reported_with_the_nearest_one() -> None:
    (line,) = misspelt(["HVD_EXT_BUCKET_SIZE", "HVD_EXT_SYNC", "PATH", "HVD_EXT_TEST_FUZZ"])
    assert "HVD_EXT_BUCKET_SIZE has no effect" in line
    assert "did you mean HVD_EXT_BUCKET_BYTES?" in line


@pytest.mark.parametrize("module", ["hvprof", "hvd_launch"])
def test_commands_report_it_once(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"],
        env=environment({"HVPROF_TRACES": "5"}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("unknown environment variable HVPROF_TRACES") == 1
    assert "did you mean HVPROF_TRACE?" in done.stderr
