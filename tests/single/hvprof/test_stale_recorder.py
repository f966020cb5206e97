"""A recorder that was built from another version of hvprof says that it does not fit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

IMPORT = "import hvd_ext.events as e; print(e.recorder())"


def test_a_recorder_of_another_version_is_named_once(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "stale.c", tmp_path / "stale.so"
    source.write_text("void hvprof_begin(void) {}\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    done = imported(LD_PRELOAD=str(library))
    assert done.stdout == "None\n"
    (line,) = done.stderr.splitlines()
    assert "another version than hvd_ext" in line
    assert "hvprof_end" in line
    assert "make env" in line


def test_a_process_that_is_not_recorded_says_nothing() -> None:
    done = imported()
    assert (done.stdout, done.stderr) == ("None\n", "")


def imported(**variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | variables
    return subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, env=environment, check=True
    )
