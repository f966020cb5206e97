"""Ranks keep the memory they free: by hvd.init(), and by hvd-launch run for any program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_ext.system.freed_memory import VARIABLES, chosen_names
from tests.conftest import Launch
from tests.support.launch.on_every_mpi import environment, run
from tests.support.launch.page_faults import COUNT

SIZES_MIB = ("20", "20", "20", "48")
# A round's pages, where the kernel gives them in huge ones of 2 MiB.
HUGE_PAGES = sum(map(int, SIZES_MIB)) // 2
INIT = "import {module} as hvd; hvd.init()\n"

pytestmark = pytest.mark.skipif(
    bool({*chosen_names(os.environ), *VARIABLES} & os.environ.keys()), reason="malloc is set here"
)


@pytest.mark.parametrize(
    ("module", "keep", "kept"),
    [
        ("hvd_ext.torch", "1", True),
        pytest.param("hvd_ext.torch", "0", False, marks=pytest.mark.long),
        pytest.param("horovod.torch", "1", False, marks=pytest.mark.long),
    ],
)
def test_after_init(module: str, keep: str, kept: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INIT.format(module=module) + COUNT, *SIZES_MIB],
        env=environment(
            Path(sys.executable).parent,
            HVD_EXT_KEEP_MEMORY=keep,
            OMPI_MCA_ess_singleton_isolated="1",
        ),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert (10 * int(done.stdout) < HUGE_PAGES) == kept


@pytest.mark.parametrize("keep", ["1", pytest.param("0", marks=pytest.mark.long)])
def test_what_a_start_has_freed_goes_back_after_the_first_steps(keep: str, launch: Launch) -> None:
    program = "tests/programs/optimizer/frees_its_start.py"
    done = launch(2, [program], env={"HVD_EXT_KEEP_MEMORY": keep})
    assert done.returncode == 0, done.stdout + done.stderr
    returned_mib = [int(word) for word in re.findall(r"RETURNED (-?\d+)", done.stdout)]
    assert len(returned_mib) == 4  # of 2 ranks, whole and sharded
    # Without the setting, malloc is left alone altogether.
    for mib in returned_mib:
        assert (mib > 150) == (keep == "1")


@pytest.mark.parametrize("bare", [[], pytest.param(["--bare"], marks=pytest.mark.long)])
def test_in_a_rank_of_hvd_launch(library: Path, bare: list[str]) -> None:
    job = ("run", *bare, "-np", "1", "--", str(library / "python"), "-c", COUNT, *SIZES_MIB)
    for keep, kept in (("1", True), ("0", False)):
        done = run(library, *job, HVD_EXT_KEEP_MEMORY=keep)
        assert done.returncode == 0, done.stderr
        assert (10 * int(done.stdout.split()[-1]) < HUGE_PAGES) == kept
        assert ("hvd-launch: sets MALLOC_" in done.stderr) == kept
