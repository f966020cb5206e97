"""hvd-launch's commands and variables for every MPI library, without any MPI."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from hvd_ext.errors import HvdExtError, UsageError
from hvd_launch.backends import slurm
from hvd_launch.backends.base import PROGRAMS
from hvd_launch.backends.libraries import (
    LIBRARIES,
    Backend,
    build_launch,
    find,
    recognise,
    recognise_mpirun,
    version_line,
)
from hvd_launch.commands.run import script
from hvd_launch.job import Host, Job, parse_hosts
from hvd_launch.settings import PRESETS, Setting, render
from testbed.emulated_hosts import Hosts

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "launch"
OPENMPI_4 = """mpirun (Open MPI) 4.1.8

Report bugs to http://www.open-mpi.org/community/help/
"""
OPENMPI_5 = """mpirun (Open MPI) 5.0.11

Report bugs to https://www.open-mpi.org/community/help/
"""
MPICH_5 = """HYDRA build details:
    Version:                                 5.0.2
    Release Date:                            Fri Sep 25 20:45:26 UTC 2026
    CC:                              cc
    Configure options:                       --with-device=ch4:ucx,ofi --with-pm=hydra:gforker
    Process Manager:                         pmi
    Launchers available:                     ssh rsh fork slurm ll lsf sge manual persist
"""
INTEL = """Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240701 (id: 179630a)
Copyright 2003-2024, Intel Corporation.
"""
ENVIRON = {"PATH": "/opt/mpi/bin:/usr/bin", "HOME": "/home/me", "OMP_NUM_THREADS": "8"}


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        (OPENMPI_4, "openmpi4", (4, 1, 8)),
        (OPENMPI_5, "openmpi5", (5, 0, 11)),
        ("orterun (OpenRTE) 4.1.4\n", "openmpi4", (4, 1, 4)),
        ("mpirun (Open MPI) 5.0.0rc12\n", "openmpi5", (5, 0, 0)),
        (MPICH_5, "mpich", (5, 0, 2)),
        (INTEL, "intelmpi", (2021, 13)),
    ],
)
def test_recognises_a_library_by_its_mpirun(text: str, name: str, version: tuple[int, ...]) -> None:
    assert recognise_mpirun(text) == (LIBRARIES[name], version)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mpirun (Open MPI) 3.1.6\n",
        "mpirun (Closed MPI) 4.1.8\n",
        "HYDRA build details:\n",
    ],
)
def test_an_unknown_library_is_quoted(text: str) -> None:
    with pytest.raises(HvdExtError, match="hvd-launch knows"):
        recognise_mpirun(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Open MPI v4.1.8, package: Open MPI a@b, ident: 4.1.8", ("openmpi4", (4, 1, 8))),
        ("Open MPI v5.0.11, package", ("openmpi5", (5, 0, 11))),
        ("MPICH Version:      5.0.2\nMPICH Release date: x", ("mpich", (5, 0, 2))),
        ("MVAPICH Version:      4.0\nMVAPICH Release date", ("mvapich", (4, 0))),
        ("MVAPICH-Plus Version: 4.1", ("mvapich", (4, 1))),
        ("MVAPICH2 2.3.7 Wed March 02 22:00:00 EST 2022 ch3:mrail", ("mvapich2", (2, 3, 7))),
        ("MVAPICH2 Version      :\t2.3.7\n", ("mvapich2", (2, 3, 7))),
        ("MVAPICH2-GDR 2.3.7 Sun May 29", ("mvapich2-gdr", (2, 3, 7))),
        ("Intel(R) MPI Library 2021.13 for Linux* OS", ("intelmpi", (2021, 13))),
        ("NoSuch MPI 1.0", None),
    ],
)
def test_recognises_a_library_by_its_own_words(text: str, expected: object) -> None:
    found = recognise(text)
    assert (found and (found[0].name, found[1])) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Open MPI v4.1.8, package: Open MPI a@b, ident: 4.1.8", "Open MPI v4.1.8"),
        ("MPICH Version:      5.0.2\nMPICH Release date: x", "MPICH Version 5.0.2"),
        ("MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date :\tx", "MVAPICH2 Version 2.3.7"),
        (
            "Intel(R) MPI Library 2021.19.0 for Linux* OS\n\0",
            "Intel(R) MPI Library 2021.19.0 for Linux* OS",
        ),
    ],
)
def test_a_library_is_named_in_one_line(text: str, line: str) -> None:
    assert version_line(text) == line


def job(hosts: str = "", size: int = 4, slots: int = 8, as_root: bool = False) -> Job:
    places = parse_hosts(hosts) if hosts else ()
    return Job(size, places, slots, ("OMP_NUM_THREADS", "PATH"), as_root, ("python", "a b.py"))


def arguments(name: str, launcher: str, job: Job, plugin: str = "") -> str:
    backend = Backend(name, LIBRARIES[name].assumed_version, launcher, PROGRAMS[launcher], plugin)
    return shlex.join(build_launch(backend, job, ENVIRON).argv)


def test_open_mpi() -> None:
    assert arguments("openmpi5", "mpirun", job()) == (
        "mpirun -np 4 --bind-to none --map-by slot -x OMP_NUM_THREADS -x PATH python 'a b.py'"
    )
    crowded = job("n1:2,n2", slots=3, as_root=True)
    assert arguments("openmpi4", "mpirun", crowded) == (
        "mpirun --allow-run-as-root -np 4 --host n1:2,n2:1 --oversubscribe"
        " --bind-to none --map-by slot -x OMP_NUM_THREADS -x PATH python 'a b.py'"
    )


def test_hydra_has_no_flag_for_root_or_for_more_ranks_than_slots() -> None:
    crowded = job("n1:2,n2", slots=3, as_root=True)
    assert arguments("mpich", "hydra", crowded) == (
        "mpirun -np 4 -hosts n1:2,n2:1 -bind-to none -genvall python 'a b.py'"
    )


def test_srun_spreads_evenly_or_says_that_it_cannot() -> None:
    assert "--nodes=2 --ntasks-per-node=2 --nodelist=n1,n2" in arguments(
        "mpich", "srun", job("n1:2,n2:2"), "pmi2"
    )
    with pytest.raises(UsageError, match="same number of ranks"):
        arguments("mpich", "srun", job("n1:2,n2:1"), "pmi2")
    assert "--overcommit" in arguments("mpich", "srun", job(size=9), "pmi2")


def test_intels_mpirun_names_hosts_and_their_slots_apart() -> None:
    started = arguments("intelmpi", "hydra", job("n1:2,n2:2"))
    assert started == "mpirun -np 4 -ppn 2 -hosts n1,n2 -genvall python 'a b.py'"
    with pytest.raises(UsageError, match="not 1 and 2"):
        arguments("intelmpi", "hydra", job("n1:2,n2:1"))


def test_srun_is_given_the_best_plugin_that_it_has() -> None:
    listed = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific versions: pmix_v4\n"
    assert slurm.plugins(LIBRARIES["openmpi4"], listed) == ["pmix_v4", "pmix"]
    assert slurm.plugins(LIBRARIES["mvapich2"], listed) == ["pmi2"]
    assert slurm.plugins(LIBRARIES["openmpi5"], "none\n") == []


@pytest.mark.parametrize(
    ("text", "counts"),
    [("4(x2),1", (4, 4, 1)), ("2", (2,)), ("", ()), ("4(x", ()), ("a", ()), ("-1", ())],
)
def test_slurms_counts(text: str, counts: tuple[int, ...]) -> None:
    assert slurm.expand_counts(text) == counts


@pytest.mark.parametrize("word", ["a b", "$HOME", "x;id", "it's", '"', "", "two\nlines", "`id`"])
def test_mpirun_rsh_is_given_nothing_that_its_remote_shell_would_read(word: str) -> None:
    plain = Job(2, (Host("n1", 2),), 2, ("HVD_EXT_X",), False, ("python", "train.py"))
    backend = Backend("mvapich2", (2, 3), "mpirun_rsh", "mpirun_rsh")
    assert build_launch(backend, plain, {"HVD_EXT_X": "1"}).argv[1:] == (
        *("-np", "2", "n1", "n1", "HVD_EXT_X=1"),
        *("python", "train.py"),
    )
    hostile = Job(2, (Host("n1", 2),), 2, (), False, ("python", word))
    with pytest.raises(UsageError, match="remote shell"):
        build_launch(backend, hostile, {})
    if word:
        with pytest.raises(UsageError, match="remote shell"):
            build_launch(backend, plain, {"HVD_EXT_X": word})


def test_a_lone_colon_is_refused_by_all() -> None:
    with pytest.raises(UsageError, match="ends a program"):
        arguments("openmpi4", "mpirun", Job(2, (), 2, (), False, ("true", ":", "true")))


def library_settings(name: str, preset: str) -> tuple[Setting, ...]:
    library = LIBRARIES[name]
    return (*library.settings(), *library.gpu_settings(preset, ENVIRON))


STARTED = [
    (name, launcher, plugin)
    for name, library in LIBRARIES.items()
    for launcher in library.launchers
    for plugin in (
        [slurm.plugins(LIBRARIES[name], "pmix_v4 pmi2")[0]] if launcher == "srun" else [""]
    )
]


@pytest.mark.parametrize(("name", "launcher", "plugin"), STARTED)
def test_the_command_and_its_reasons_are_those_in_the_golden_file(
    name: str, launcher: str, plugin: str
) -> None:
    backend = Backend(name, LIBRARIES[name].assumed_version, launcher, PROGRAMS[launcher], plugin)
    settings = library_settings(name, "mpi-opt")
    environ = ENVIRON | {setting.name: setting.value for setting in settings}
    names = tuple(sorted({"PATH", "OMP_NUM_THREADS", *(s.name for s in settings)}))
    hosts = (Host("node1", 4), Host("node2", 4))
    launch = build_launch(backend, Job(8, hosts, 8, names, False, ("python", "train.py")), environ)
    compare(f"run-{name}-{launcher}.sh", script(backend, launch, settings, ()))


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_presets_are_those_in_the_golden_file(name: str) -> None:
    texts = []
    for preset, meaning in PRESETS.items():
        settings = library_settings(name, preset)
        assert all(s.default and s.why and s.source for s in settings)
        texts.append(render(settings, "sh", f"{preset}: {meaning}"))
    compare(f"env-{name}.sh", "\n\n".join(texts))


@pytest.mark.parametrize("form", ["json", "slurm"])
def test_the_other_forms_are_those_in_the_golden_file(form: str) -> None:
    settings = LIBRARIES["mvapich2-gdr"].gpu_settings("mpi-opt", ENVIRON)
    compare(f"env-mvapich2-gdr.{form}", render(settings, form, "mpi-opt"))


def test_mvapich2_gdr_leaves_out_what_does_not_go_with_a_preload() -> None:
    preloaded = LIBRARIES["mvapich2-gdr"].gpu_settings("mpi-opt", {"LD_PRELOAD": "libmpi.so"})
    assert "MV2_SUPPORT_DL" not in {setting.name for setting in preloaded}


def test_a_name_or_a_family_finds_its_library() -> None:
    assert find("openmpi5") is LIBRARIES["openmpi5"]
    assert find("openmpi") is LIBRARIES["openmpi4"]
    assert find("") is None


def test_ucx_where_the_library_has_it() -> None:
    assert any(s.name == "OMPI_MCA_pml" for s in LIBRARIES["openmpi5"].ucx_settings())
    assert [s.value for s in LIBRARIES["intelmpi"].ucx_settings()] == ["mlx"]
    with pytest.raises(UsageError, match="leave out --ucx"):
        LIBRARIES["mvapich2"].ucx_settings()


def test_emulated_hosts_have_what_run_sets_for_tcp() -> None:
    words = Hosts(names=("host0",), addresses=("10.77.0.1",), pids=(1, 2)).mpirun(1)
    ours = {setting.name: setting.value for setting in LIBRARIES["openmpi4"].settings()}
    value = words[words.index("btl_tcp_eager_limit") + 1]
    assert value == ours["OMPI_MCA_btl_tcp_eager_limit"]


def compare(name: str, text: str) -> None:
    """Against a golden file; HVD_EXT_TEST_WRITE_GOLDEN=1 rewrites it, to be read in review."""
    path = GOLDEN / name
    if os.environ.get("HVD_EXT_TEST_WRITE_GOLDEN"):
        path.write_text(text + "\n")
    assert path.read_text() == text + "\n"
