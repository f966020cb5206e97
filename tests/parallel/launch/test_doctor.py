"""`hvd-launch doctor` on real MPI libraries, as they belong together and as they do not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_ext.system.freed_memory import chosen_names
from hvd_launch import machine
from hvd_launch.backends.libraries import LIBRARIES as KNOWN
from hvd_launch.doctor.rules_node import CACHE_LINE
from tests.support.launch.on_every_mpi import (
    HERE,
    IN_TEST_OR_LONG,
    LIBRARIES,
    backend_of,
    bin_of,
    environment,
)

Told = dict[str, dict[str, str]]


def doctor(python: Path, mpirun: Path, *arguments: str, **extra: str) -> tuple[int, Told]:
    done = subprocess.run(
        [str(python), "-m", "hvd_launch", "doctor", "--json", *arguments],
        env=environment(mpirun, OMP_NUM_THREADS="1", **extra),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    findings = {finding["topic"]: finding for finding in told["findings"]}
    wrong = [topic for topic, finding in findings.items() if finding["status"] == "wrong"]
    assert told["ok"] == (not wrong)
    assert done.returncode == bool(wrong)
    for topic in wrong:
        assert findings[topic]["impact"]
        assert findings[topic]["remedy"]
    return done.returncode, findings


@pytest.mark.long
@pytest.mark.parametrize("name", IN_TEST_OR_LONG)
def test_a_library_with_its_own_python(name: str) -> None:
    folder = bin_of(name)
    code, told = doctor(folder / "python", folder)
    assert code == 0, told
    library = KNOWN[LIBRARIES[name].backend or backend_of(folder).name]
    assert told["MPI"]["evidence"].startswith(library.title)
    assert "never been run" not in str(told)
    assert told["one MPI"]["status"] == "ok"
    assert told["a job"]["evidence"] == "2 ranks found each other"
    assert told["thread level"]["evidence"] == "MPI_THREAD_MULTIPLE"
    assert "CUDA awareness" in told
    spare = machine.cores() > 2
    assert ("yielding" in told) == (library.yields is not None and not spare)
    kept = "ok" if chosen_names(os.environ) == [] else "note"
    assert told["freed memory"]["status"] == kept
    plain, few = re.findall(r" with (\d+)", told["freed memory"]["evidence"])
    assert 10 * int(few) < int(plain)


# What is made of two libraries that differ: tests/single/launch/test_doctor.py.
@pytest.mark.long
@pytest.mark.parametrize(
    ("python", "mpirun"),
    [
        ("environment", "openmpi5"),
        ("intelmpi", "mvapich2"),
        ("openmpi5", "mpich5"),
        ("mpich5", "openmpi5"),
    ],
)
def test_an_mpirun_of_another_library_is_seen(python: str, mpirun: str) -> None:
    mine, other = LIBRARIES[python].folder, LIBRARIES[mpirun].folder
    if not (mine / "python").exists() or not (other / "mpirun").exists():
        pytest.skip("no other MPI library: run `make mpis`")
    code, told = doctor(mine / "python", other)
    assert code == 1
    mismatch = told["one MPI: mpi4py"]["evidence"]
    assert str(other / "mpirun") in mismatch
    assert "libmpi.so" in mismatch
    # Intel MPI's ranks and MVAPICH2's mpirun both speak PMI-1, and on an Intel CPU that is enough.
    if (python, mpirun) != ("intelmpi", "mvapich2"):
        assert told["a job"]["status"] == "wrong"


def test_what_the_environment_and_a_log_tell(tmp_path: Path) -> None:
    log = tmp_path / "a log"
    log.write_bytes(b"step 1\n\xff\n" + CACHE_LINE.encode() + b"\n")
    code, told = doctor(
        HERE / "python",
        HERE,
        "--log",
        str(log),
        "-np",
        str(len(os.sched_getaffinity(0)) + 1),
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert code == 1
    assert CACHE_LINE in told["registration cache"]["evidence"]
    assert told["expandable_segments"]["status"] == "wrong"
    assert told["cores"]["status"] == "wrong"
    assert told["recorder"]["status"] == "ok", told["recorder"]
    assert told["yielding"]["evidence"].startswith("not measured")


@pytest.mark.long
def test_the_screen_fits_a_terminal() -> None:
    pytest.importorskip("rich")
    done = subprocess.run(
        [sys.executable, "-m", "hvd_launch", "doctor"],
        env=environment(HERE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True[/red]"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 100 for line in lines)
    assert "expandable_segments:True[/red]" in done.stdout
    assert lines[-1].endswith(" found")
