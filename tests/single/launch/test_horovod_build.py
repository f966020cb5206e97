"""The command with which `doctor` builds Horovod does so as it is printed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from testbed.ranks import ROOT

PRINT = "from hvd_launch.doctor import child; print(child.builds()['build'])"
IMPORT = """
import horovod, horovod.torch as hvd
assert hvd.mpi_built() and hvd.gloo_built()
print(horovod.__file__)
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_printed_command_builds_horovod_for_this_torch_and_mpi(tmp_path: Path) -> None:
    """In an environment that has torch and MPI from this one, and a Horovod only by the command."""
    venv = tmp_path / "own environment"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = str(venv / "bin" / "python")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    (packages / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    path = os.pathsep.join((str(venv / "bin"), str(Path(sys.executable).parent), os.defpath))
    env = {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'launch'}"}
    command = subprocess.check_output([python, "-c", PRINT], env=env, text=True)
    done = subprocess.run(
        ["sh", "-c", command],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}"
    place = subprocess.check_output([python, "-c", IMPORT], env=env, cwd=tmp_path, text=True)
    assert Path(place).is_relative_to(venv)
