"""What a job is started with: the same by run, doctor and tune, whatever the MPI library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_launch.backends.libraries import LIBRARIES, Backend
from hvd_launch.doctor import collect
from hvd_launch.job_settings import job_settings
from hvd_launch.tune.common import jobs
from hvd_launch.tune.common.target import Target

ROOT = Path(__file__).resolve().parents[3]
# Stands for a launcher: tells its environment, which the ranks would have.
TELLS = "#!/bin/sh\nenv\n"


@pytest.fixture
def backend(tmp_path: Path, request: pytest.FixtureRequest) -> Backend:
    library = LIBRARIES[request.param]
    program = tmp_path / "mpirun"
    program.write_text(TELLS)
    program.chmod(0o755)
    launcher = next(name for name in library.launchers if name in ("mpirun", "hydra"))
    return Backend(library.name, library.assumed_version, launcher, str(program))


def variables(text: str, expected: dict[str, str]) -> dict[str, str]:
    told = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    return {name: told[name] for name in expected if name in told}


@pytest.mark.parametrize("backend", LIBRARIES, indirect=True)
def test_run_doctor_and_tune_start_the_same_job(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = job_settings(backend.library, os.environ).given
    expected = {setting.name: setting.value for setting in settings}
    for name in expected:
        monkeypatch.delenv(name, raising=False)
    assert variables(collect._job(backend, 2, "rank")[1], expected) == expected
    lines: list[str] = []
    jobs.run(Target(backend, 2, ()), ["true"], (), 30.0, lines.append)
    assert variables("\n".join(lines), expected) == expected
    command = [sys.executable, "-m", "hvd_launch", "run", "--dry-run", "--backend", backend.name]
    path = os.pathsep.join([str(ROOT), str(ROOT / "launch")])
    printed = subprocess.run(
        [*command, "-np", "2", "--", "true"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    script = printed.replace("export ", "")
    assert variables(script, expected) == expected
    env = [sys.executable, "-m", "hvd_launch", "env", "--backend", backend.name]
    same = subprocess.run(
        env,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exports = [line for line in printed.splitlines() if line.startswith("export ")]
    assert exports
    assert [line for line in same.splitlines() if line.startswith("export ")] == exports


def test_what_is_set_already_is_kept() -> None:
    library = LIBRARIES["mvapich2"]
    found = job_settings(library, {"MV2_ENABLE_AFFINITY": "1", "HVD_EXT_KEEP_MEMORY": "0"})
    assert [setting.name for setting in found.kept] == ["MV2_ENABLE_AFFINITY"]
    assert "MV2_ENABLE_AFFINITY" not in {setting.name for setting in found.given}


def test_mvapich2_gets_threads_and_no_advice_in_every_job() -> None:
    given = {s.name: s.value for s in job_settings(LIBRARIES["mvapich2"], {}).given}
    assert given["MV2_ENABLE_AFFINITY"] == "0"
    assert given["MV2_USE_THREAD_WARNING"] == "0"
    assert given["MV2_USE_ALIGNED_ALLOC"] == "1"


def test_a_preset_that_is_asked_for_is_for_hosts_with_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hvd_launch.machine.gpus", lambda: 0)
    library = LIBRARIES["mvapich2-gdr"]
    asked = job_settings(library, {}, "mpi-opt")
    assert asked.has_gpus
    assert asked == job_settings(library, {}, gpu_count=4)
    assert not job_settings(library, {}).has_gpus
    assert not job_settings(library, {}, "mpi-opt", gpu_count=0).has_gpus
