"""Kubernetes' MPI Operator: its launcher's variables and hostfile are read as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_ext.errors import UsageError
from hvd_launch.cli import main

# As the operator (kubeflow/mpi-operator, v2beta1) sets them in a launcher's pod, for an MPIJob
# called train with two workers of two slots.
HOSTS = [f"train-worker-{index}.train.default.svc" for index in range(2)]
HOSTFILES = {
    "openmpi": "".join(f"{host} slots=2\n" for host in HOSTS),
    "others": "".join(f"{host}:2\n" for host in HOSTS),
}
RECORDED = {
    "openmpi4": {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "{folder}/openmpi",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    },
    "intelmpi": {
        "I_MPI_HYDRA_HOST_FILE": "{folder}/others",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
    },
    "mpich": {
        "HYDRA_HOST_FILE": "{folder}/others",
        "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10",
    },
}
RUN = ["run", "--dry-run", "--json"]


@pytest.fixture(params=RECORDED)
def library(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A library in a launcher's pod."""
    for name, text in HOSTFILES.items():
        (tmp_path / name).write_text(text)
    for variable in ("SLURM_JOB_ID", *(v for known in RECORDED.values() for v in known)):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in RECORDED[request.param].items():
        monkeypatch.setenv(variable, value.format(folder=tmp_path))
    name: str = request.param
    return name


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*RUN, *arguments, "--", "python", "train.py"]) == 0
    argv: list[str] = json.loads(capsys.readouterr().out)["argv"]
    return " ".join(argv[: argv.index("exec")])


def test_a_job_takes_every_slot_of_the_hostfile(
    library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = shown(capsys, "--backend", library)
    places = {
        "openmpi4": f"--host {HOSTS[0]}:2,{HOSTS[1]}:2",
        "mpich": f"-hosts {HOSTS[0]}:2,{HOSTS[1]}:2",
        "intelmpi": f"-ppn 2 -hosts {HOSTS[0]},{HOSTS[1]}",
    }
    assert "-np 4 " in command
    assert places[library] in command
    assert "oversubscribe" not in command


def test_what_the_command_line_says_comes_first(
    library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = shown(capsys, "--backend", library, "-np", "3", "-H", "here:3")
    assert "-np 3 " in command
    assert "train-worker" not in command


def test_a_hostfile_that_is_not_there_names_the_variable(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = next(
        name for name in RECORDED[library] if "HOST_FILE" in name.upper() or "hostfile" in name
    )
    monkeypatch.setenv(variable, "/no/such")
    with pytest.raises(UsageError, match=f"{variable} /no/such: No such file"):
        main([*RUN, "--backend", library, "--", "true"])


def test_in_slurm_the_allocation_counts(
    library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"JOB_ID": "1", "NTASKS": "2", "JOB_NODELIST": "n1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    launcher = "mpirun" if library == "openmpi4" else "hydra"
    command = shown(capsys, "--backend", library, "--launcher", launcher)
    assert "-np 2 " in command
    assert "train-worker" not in command
