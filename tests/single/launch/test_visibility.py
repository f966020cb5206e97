"""Which GPU each rank lands on, under every strategy; no GPU is needed, nor used."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.errors import UsageError
from hvd_launch.backends.libraries import find
from hvd_launch.machine import gpus
from hvd_launch.rank import visibility
from hvd_launch.rank.environment import RankInfo, rank_info
from hvd_launch.rank.gpus import rank_environment
from hvd_launch.rank.visibility import STRATEGIES, pool, view

ROOT = Path(__file__).resolve().parents[3]
SHIM = ROOT / "launch" / "hvd_launch" / "rank" / "set_device_shim"


def shim() -> ModuleType:
    """set_device_shim/sitecustomize.py, under a name that starts nothing."""
    spec = importlib.util.spec_from_file_location("shim", SHIM / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def physical(variables: dict[str, str], devices: tuple[str, ...], ordinal: int) -> str:
    """The GPU that an ordinal means to a program with these variables."""
    return variables.get("CUDA_VISIBLE_DEVICES", ",".join(devices)).split(",")[ordinal]


@given(
    strategy=st.sampled_from(sorted(STRATEGIES)),
    devices=st.lists(st.integers(0, 20), min_size=2, max_size=8, unique=True),
    local_rank=st.integers(0, 12),
)
def test_horovods_own_call_reaches_the_ranks_own_gpu(
    strategy: str, devices: list[int], local_rank: int
) -> None:
    names = tuple(map(str, devices))
    seen = view(strategy, names, local_rank)
    own = names[local_rank % len(names)]
    # torch.cuda.set_device(hvd.local_rank()), as `hvd-launch exec` lets it be read.
    shown = seen.variables["CUDA_VISIBLE_DEVICES"].split(",")
    # The second is what scripts write where ranks share GPUs.
    for asked in (local_rank, local_rank % len(shown)):
        ordinal = shim().own_device(asked, local_rank, seen.own, len(shown))
        assert physical(dict(seen.variables), names, ordinal) == own
    assert set(shown) == ({own} if strategy in ("pin", "split") else set(names))
    if strategy == "split":
        assert seen.variables["MV2_VISIBLE_DEVICES"] == ",".join(names)
    if local_rank >= len(names):
        assert "shares GPU" in seen.notes[0]


def test_under_all_every_rank_has_an_ordinal_of_its_own() -> None:
    views = [view("all", ("0", "1", "2", "3"), rank) for rank in range(4)]
    assert [seen.own for seen in views] == [0, 1, 2, 3]
    assert len({seen.variables["CUDA_VISIBLE_DEVICES"] for seen in views}) == 1


@pytest.mark.parametrize(
    ("listed", "count", "expected"),
    [
        (None, 3, ("0", "1", "2")),
        (None, 0, ()),
        ("", 4, ()),
        ("2,3", 4, ("2", "3")),
        ("GPU-8f2a,MIG-1", 4, ("GPU-8f2a", "MIG-1")),
        ("1,-1,2", 4, ("1",)),
        (" 1 , 0", 4, ("1", "0")),
    ],
)
def test_what_the_scheduler_restricted_stays_so(
    listed: str | None, count: int, expected: tuple[str, ...]
) -> None:
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert pool(environ, count) == expected


def test_a_gpu_named_twice_is_an_error() -> None:
    with pytest.raises(UsageError, match="twice"):
        pool({"CUDA_VISIBLE_DEVICES": "1,1"}, 4)


def test_a_gpu_that_the_scheduler_gave_alone_is_left_as_it_is() -> None:
    for strategy in STRATEGIES:
        seen = view(strategy, ("3",), 2)
        assert seen.strategy == "none"
        assert not seen.variables


def test_a_rank_whose_one_gpu_is_not_numbered_as_the_rank_reaches_it_too() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "3"}
    assert rank_environment(environ, RankInfo(0, 0, "openmpi"), "auto", None, 4) == environ
    for strategy in ("auto", "pin"):
        result = rank_environment(environ, RankInfo(5, 2, "openmpi"), strategy, None, 4)
        assert result["CUDA_VISIBLE_DEVICES"] == "3"
        assert result["HVD_LAUNCH_OWN_DEVICE"] == "2:0:none"


@pytest.mark.parametrize(
    ("family", "environ", "knows", "strategy"),
    [
        ("openmpi4", {}, False, "all"),
        ("openmpi", {"OMPI_MCA_pml": "ob1"}, False, "all"),
        ("openmpi5", {"OMPI_MCA_pml": "ucx"}, False, "pin"),
        ("mpich", {}, False, "rotate"),
        ("mvapich", {}, False, "rotate"),
        ("mvapich2-gdr", {}, False, "all"),
        ("mvapich2-gdr", {}, True, "split"),
        ("intelmpi", {}, False, "all"),
        ("", {}, False, "all"),
    ],
)
def test_auto_chooses_by_library(
    family: str, environ: dict[str, str], knows: bool, strategy: str
) -> None:
    assert visibility.choose(find(family), ("0", "1"), environ, knows)[0] == strategy


@pytest.mark.parametrize("family", ["openmpi4", "mpich", "mvapich2-gdr", "intelmpi", ""])
def test_auto_pins_where_a_list_could_not_be_read(family: str) -> None:
    for knows in (True, False):
        migs = ("MIG-a", "MIG-GPU-b/1/0")
        assert visibility.choose(find(family), migs, {}, knows)[0] == "pin"
    named = visibility.choose(find(family), ("GPU-8f2a", "GPU-91c0"), {}, False)[0]
    assert (named == "pin") == (family == "mpich")


def test_split_says_that_the_library_does_not_know_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = RankInfo(0, 0, "mvapich2")
    result = rank_environment({"PATH": "/nowhere"}, here, "split", "mvapich2-gdr", 4)
    assert result["MV2_VISIBLE_DEVICES"] == "0,1,2,3"
    assert "MVAPICH2-GDR does not read MV2_VISIBLE_DEVICES" in capsys.readouterr().err


def test_the_library_is_asked_whether_it_knows_the_list(tmp_path: Path) -> None:
    (tmp_path / "libmpi.so").write_bytes(b"\x7fELF..MV2_VISIBLE_DEVICES\0")
    environ = {"PATH": "/nowhere", "LD_LIBRARY_PATH": str(tmp_path)}
    result = rank_environment(environ, RankInfo(1, 1, "mvapich2"), "auto", "mvapich2-gdr", 2)
    assert result["CUDA_VISIBLE_DEVICES"] == "1"
    assert result["MV2_VISIBLE_DEVICES"] == "0,1"


def test_without_gpus_nothing_changes() -> None:
    environ = {"A": "1"}
    assert rank_environment(environ, RankInfo(1, 1, "openmpi"), "auto", None, 0) == environ


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            RankInfo(5, 1, "openmpi"),
        ),
        (
            # A batch script's own variables reach the ranks that its mpirun starts.
            {
                **{"SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
                **{"PMI_RANK": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            },
            RankInfo(3, 1, "mpich", 2),
        ),
        (
            # Without its site's I_MPI_ROOT, as its package from PyPI leaves it.
            {"PMI_RANK": "1", "MPI_LOCALRANKID": "0", "I_MPI_HYDRA_UUID": "1a-2b"},
            RankInfo(1, 0, "intelmpi"),
        ),
        (
            {"PMI_RANK": "1", "MPI_LOCALRANKID": "0", "I_MPI_ROOT": "/opt/intel/mpi"},
            RankInfo(1, 0, "mpich"),
        ),
        (
            {"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_LOCAL_RANK": "2", "PMI_RANK": "2"},
            RankInfo(2, 2, "mvapich2"),
        ),
        (
            {"PMI_RANK": "3", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"},
            RankInfo(3, 1, ""),
        ),
        ({"FLUX_TASK_RANK": "3", "FLUX_TASK_LOCAL_ID": "1"}, RankInfo(3, 1, "")),
        ({"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, None),
        ({}, None),
    ],
)
def test_a_process_knows_its_rank(environ: dict[str, str], expected: RankInfo | None) -> None:
    assert rank_info(environ) == expected


def test_gpus_are_those_that_the_driver_lists(tmp_path: Path) -> None:
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    dev.mkdir()
    assert gpus(proc, dev) == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (dev / name).touch()
    assert gpus(proc, dev) == 2
    (proc / "0000:01:00.0").mkdir(parents=True)
    assert gpus(proc, dev) == 1


# A torch whose device is a variable, as no GPU is here; the import is Python's own.
TORCH = """
import os
def device_count():
    return len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
def set_device(device):
    print("device", device)
"""
SCRIPT = """
import torch.cuda
torch.cuda.set_device(1)
torch.cuda.set_device("cuda:1")
torch.cuda.set_device(2)
"""


@pytest.mark.parametrize(
    ("strategy", "lines"),
    [
        ("pin", ["device 0", "device 0", "device 2"]),
        ("rotate", ["device 0", "device 0", "device 2"]),
        ("split", ["device 0", "device 0", "device 2"]),
        ("all", ["device 1", "device cuda:1", "device 2"]),
    ],
)
def test_a_script_that_sets_its_device_as_horovod_says(
    tmp_path: Path, strategy: str, lines: list[str]
) -> None:
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text(TORCH)
    # A site's own sitecustomize is run all the same.
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['SITE'] = 'own'\n")
    base = {**os.environ, "PYTHONPATH": str(tmp_path)}
    env = rank_environment(base, RankInfo(1, 1, "openmpi"), strategy, "openmpi4", 4)
    script = f"{SCRIPT}\nimport os, sys; print(os.environ['SITE'], sys.modules['sitecustomize'])"
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    *devices, site = done.stdout.splitlines()
    assert devices == lines
    assert site.startswith("own")
    assert str(tmp_path) in site
    reported = "selects the rank's own GPU, which is cuda:0 here" in done.stderr
    assert reported == (strategy != "all")


def test_the_real_torch_is_wrapped_too() -> None:
    pytest.importorskip("torch")
    env = rank_environment(os.environ, RankInfo(1, 1, "openmpi"), "rotate", "openmpi4", 2)
    code = "import torch; print(torch.cuda.set_device.__module__, torch.tensor([1]).sum().item())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["sitecustomize", "1"]
