"""`hvd-launch tune` on real MPI libraries: it measures, is interrupted, goes on, and is believed.

Times mean nothing here, so that tests look at what was run, kept, written and read back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvd_ext.allreduce.table import BUILT_IN, dump, load
from hvd_launch.tune.allreduce.native_rules import native_rules
from hvd_launch.tune.allreduce.rank import MARK
from tests.support.launch.on_every_mpi import HERE, ROOT, backend_of, horovod_bin_of

ALLREDUCE = ["allreduce", "-np", "2", "--least", "64KiB", "--most", "128KiB"]
ALLREDUCE += ["--no-table", "--rounds", "2", "--pairs", "2", "--json"]
# A site whose setting is so bad, a message for each element, that there is much to gain.
POOR = """
coll_tuned_use_dynamic_rules = 1
coll_tuned_allreduce_algorithm = 5
coll_tuned_allreduce_algorithm_segmentsize = 4
"""
# Prints what a training would, and is twice as fast as with Horovod's defaults only where
# the fusion threshold is 16 MiB; with autotune it is as slow as with the defaults.
TRAINING = """
import os, sys
os.mkdir(sys.argv[1])  # a new one each time
threshold = int(os.environ.get("HOROVOD_FUSION_THRESHOLD", "0")) >> 20
assert ("HOROVOD_CYCLE_TIME" in os.environ) == (os.environ["HOROVOD_AUTOTUNE"] == "0")
rate = 100 * float(os.environ["BEST"]) if threshold == 16 else 100
for n in range(3):
    print(f"Iter #{n}: {rate} img/sec", flush=True)
"""


def environment(library: Path, **extra: str) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{library}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'launch'}",
        "OMP_NUM_THREADS": "1",
        **extra,
    }


def start(library: Path, *arguments: object, **extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(library / "python"), "-m", "hvd_launch", "tune", *map(str, arguments)],
        env=environment(library, **extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def tune(library: Path, *arguments: object, **extra: str) -> tuple[str, str]:
    """Both streams of a run that succeeds."""
    process = start(library, *arguments, **extra)
    try:
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out, err


def entries(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def whole_jobs(path: Path) -> list[tuple[Any, ...]]:
    return [
        (entry["phase"].split()[0], entry["candidate"], entry["round"])
        for entry in entries(path)
        if entry.get("kind") == "job" and entry["ok"]
    ]


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGINT,
        pytest.param(signal.SIGKILL, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_an_interrupted_measurement_goes_on_where_it_was(tmp_path: Path, how: int) -> None:
    library = HERE
    if backend_of(library).name != "openmpi4":
        pytest.skip("the MPI in use is not Open MPI 4")
    journal, site = tmp_path / "allreduce.jsonl", tmp_path / "site.conf"
    site.write_text(POOR)
    poor = {"OMPI_MCA_mca_base_param_files": str(site)}
    process = start(library, *ALLREDUCE, "-o", tmp_path, **poor)
    try:
        deadline = time.monotonic() + 60
        while len(whole_jobs(journal)) < 4:
            assert time.monotonic() < deadline, process.communicate()
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        ranks = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(how)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert "Traceback" not in err
    assert process.returncode == (-how if how == signal.SIGKILL else 128 + how)
    assert not psutil.wait_procs(ranks, timeout=15)[1]
    before = whole_jobs(journal)
    with journal.open("a") as file:
        file.write('{"torn')
    if how != signal.SIGKILL:
        return
    out, _ = tune(library, *ALLREDUCE, "-o", tmp_path, **poor)
    after = whole_jobs(journal)
    assert after[: len(before)] == before
    assert len(set(after)) == len(after), "a job was run twice"
    result = json.loads(out)
    assert result == json.loads((tmp_path / "allreduce.json").read_text())
    assert set(result["median_us"]) == {
        candidate.name for candidate in backend_of(library).library.candidates(1).all
    }
    # On a machine that does other things, too, rules may not be seen to be followed.
    assert result["dropped"].keys() <= {"the choice by message size"}
    # All is known: a third run starts no job.
    again, _ = tune(library, *ALLREDUCE, "-o", tmp_path, **poor)
    assert json.loads(again) == result
    assert whole_jobs(journal) == after
    # On a machine that does other things, too, there may be no gain beyond doubt.
    rules = tmp_path / "openmpi_rules.conf"
    if not (result["native"] and result["native"]["gained"]):
        assert not rules.exists()
        assert not (tmp_path / "settings.sh").exists()
        return
    assert "2 # ranks" in rules.read_text().splitlines()
    shell = f". {tmp_path / 'settings.sh'} && env"
    sourced = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    settings = dict(line.partition("=")[::2] for line in sourced.stdout.splitlines())
    assert settings["OMPI_MCA_coll_tuned_dynamic_rules_filename"] == str(rules)
    assert settings["OMPI_MCA_coll_tuned_allreduce_algorithm"] == "0"


def ranks(library: Path, variables: dict[str, str], **task: Any) -> tuple[int, list[Any], str]:
    """Exit code, entries and output of a measuring job of two ranks with these variables."""
    command = [str(library / "python"), "-m", "hvd_launch", "run", "-np", "2", "--"]
    command += [str(library / "python"), "-m", "hvd_launch.tune.allreduce.rank", json.dumps(task)]
    done = subprocess.run(
        command,
        env=environment(library, **variables),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    lines = [line.partition(MARK)[2] for line in done.stdout.splitlines() if MARK in line]
    return done.returncode, [json.loads(line) for line in lines], done.stdout + done.stderr


@pytest.mark.needs("failing rules")
def test_the_library_follows_its_native_form(library: Path, tmp_path: Path) -> None:
    code, (_, *parts), output = ranks(library, {}, sizes=[], selection=backend_of(library).name)
    assert code == 0, output
    selection = json.loads("".join(entry["part"] for entry in parts)) if parts else None
    found = backend_of(library)
    chosen = found.library.candidates(1)
    choices = ((0, chosen.base), (8192, "ring"))
    form = native_rules(found, chosen, choices, 2, tmp_path, selection)
    assert form is not None
    assert form.file is not None
    path = tmp_path / form.file
    path.write_text(form.text)
    variables = {setting.name: setting.value for setting in form.settings}
    names = {name: name.removeprefix("OMPI_MCA_") for name in variables}
    code, seen, output = ranks(library, variables, sizes=[4096, 8192], read=list(names.values()))
    assert code == 0, output
    assert [entry["message_bytes"] for entry in seen[1:]] == [4096, 8192]
    told = seen[0]["variables"]
    if found.name == "mpich":
        # MPI_T tells MPICH's numbers, not its texts.
        assert told["MPIR_CVAR_DEVICE_COLLECTIVES"] == 2
        assert told["MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE"] == 0
    else:
        assert {name: str(told[cvar]) for name, cvar in names.items()} == variables
        shown = subprocess.run(
            [library / "ompi_info", "--param", "coll", "tuned", "--level", "9", "--parsable"],
            env=environment(library, **variables),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        assert f"mca:coll:tuned:param:coll_tuned_dynamic_rules_filename:value:{path}" in shown
    # An algorithm that cannot be had shows from which size on the library takes the rule.
    ring, none = {
        "mpich": (
            'MPIR_Allreduce_intra_ring": {}',
            'MPIR_Allreduce_intra_k_reduce_scatter_allgather": {}',
        ),
        "openmpi4": ("8192 4 0 0", "8192 99 0 0"),
        "openmpi5": ("8192 4 0 0 0", "8192 99 0 0 0"),
    }[found.name]
    assert ring in form.text
    path.write_text(form.text.replace(ring, none))
    code, seen, output = ranks(library, variables, sizes=[4096, 8192])
    assert code != 0
    assert [entry["message_bytes"] for entry in seen[1:]] == [4096]


DEVICE = ["allreduce", "-np", "2", "--least", "4KiB", "--most", "8KiB", "--memory", "device"]


def tune_on_stand_ins(
    tmp_path: Path, more: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    measure = "from hvd_launch.tune.allreduce import device_command as d"
    stood_in = 'd.MEASURE = "tests.programs.arena.device_measure"'
    lines = measure, stood_in, more, "from hvd_launch.cli import entry", "entry()", ""
    program.write_text("\n".join(lines))
    command = [sys.executable, str(program), "tune", *DEVICE, "-o", str(tmp_path / "tuning")]
    return subprocess.run(
        command, env=environment(HERE, **variables), capture_output=True, text=True, timeout=200
    )


def test_carriers_on_gpus_are_measured_on_stand_ins(tmp_path: Path) -> None:
    done = tune_on_stand_ins(tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = load(tmp_path / "tuning" / "table.json").rows
    assert (row.memory, row.ranks_per_node, len(row.measured_us)) == ("device", 2, 2)
    assert "ipc takes" in done.stdout


@pytest.mark.parametrize(
    "how",
    ["right", "crash", *(pytest.param(x, marks=pytest.mark.long) for x in ("wrong", "hang"))],
)
def test_an_mpi_that_takes_no_device_memory_is_left_out(tmp_path: Path, how: str) -> None:
    limit = "d._MPI_TIMEOUT_S = 30.0" if how == "hang" else ""
    done = tune_on_stand_ins(tmp_path, limit, HVD_EXT_TEST_MPI=how)
    assert done.returncode == 0, done.stderr
    (row,) = load(tmp_path / "tuning" / "table.json").rows
    assert (row.nodes, row.ranks_per_node, row.dtype_class) == (2, 1, "any")
    seen = {"staged", "nccl", "mpi"} if how == "right" else {"staged", "nccl"}
    assert all(set(times) == seen for _, times in row.measured_us)
    assert bool(row.library) == (how == "right")
    assert ("mpi was not measured: the job " in done.stdout) == (how != "right"), done.stdout
    if how == "wrong":
        assert "mpi gave wrong sums" in done.stdout
    if how == "hang":
        assert "the job timed out" in done.stdout


def test_without_a_gpu_carriers_cannot_be_measured(tmp_path: Path) -> None:
    process = start(HERE, *DEVICE, "-o", tmp_path)
    _, err = process.communicate(timeout=200)
    assert process.returncode != 0
    assert "hvd-launch: error: no rank could measure: the job ended with code" in err, err
    assert "a GPU to measure on: " in err, err
    assert "Traceback" not in err, err
    assert not (tmp_path / "table.json").exists()


@pytest.mark.needs("control variables")
def test_a_variable_that_forces_is_read_back(library: Path, tmp_path: Path) -> None:
    chosen = backend_of(library).library.candidates(1)
    candidate = chosen["recursive_doubling"]
    variables = {setting.name: setting.value for setting in candidate.settings}
    names = [name.removeprefix("OMPI_MCA_") for name in variables]
    table = tmp_path / "table.json"
    table.write_text(dump(BUILT_IN))
    # With a table, so that MPI's thread level is seen to have survived the question.
    code, seen, output = ranks(library, variables, sizes=[64], read=names, table=str(table))
    assert code == 0, output
    told = seen[0]["variables"]
    assert told[names[-1]] not in (None, 0)
    assert seen[0]["ranks_per_node"] == [2]


# An allreduce of 8 KiB by stock Horovod, whose own messages are shorter.
HOROVOD = """
import horovod.torch as hvd, torch
hvd.init()
assert hvd.allreduce(torch.ones(2048), op=hvd.Sum).eq(2).all()
print("version", hvd.mpi_built(), open("/proc/self/maps").read().count("openmpi5-horovod") > 0)
"""


def test_stock_horovod_on_open_mpi_5_follows_the_rules(tmp_path: Path) -> None:
    library = horovod_bin_of("openmpi5")
    found = backend_of(library)
    chosen = found.library.candidates(1)
    choices = ((0, chosen.base), (8192, "ring"))
    form = native_rules(found, chosen, choices, 2, tmp_path)
    assert form is not None
    variables = {setting.name: setting.value for setting in form.settings}
    command = [str(library / "python"), "-m", "hvd_launch", "run", "-np", "2", "--"]
    for text, good in ((form.text, True), (form.text.replace("8192 4", "8192 99"), False)):
        (tmp_path / str(form.file)).write_text(text)
        done = subprocess.run(
            [*command, str(library / "python"), "-c", HOROVOD],
            env=environment(library, **variables),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode == 0) == good, done.stdout + done.stderr
        assert done.stdout.count("version True True") == (2 if good else 0)


@pytest.mark.parametrize(
    ("best", "kept"),
    [("2", "16 MiB"), pytest.param("1", "Horovod's defaults", marks=pytest.mark.long)],
)
def test_fusion_keeps_what_is_faster_and_else_the_defaults(
    tmp_path: Path, best: str, kept: str
) -> None:
    library = HERE
    command = ["fusion", "-np", "1", "-o", tmp_path, "--trials", "6", "--pairs", "2", "--json"]
    command += ["--", sys.executable, "-c", TRAINING, tmp_path / "run {run}"]
    out, err = tune(library, *command, BEST=best)
    found = json.loads(out)
    assert kept in found["kept"]
    assert len(found["trials"]) == 6
    assert "HOROVOD_AUTOTUNE" in found["finals"]
    written = tmp_path / "fusion.sh"
    assert written.exists() == (best == "2")
    if best == "2":
        assert f"export HOROVOD_FUSION_THRESHOLD={16 << 20}" in written.read_text()
    assert (tmp_path / "fusion.png").exists() or "no picture" in err
    lines = [entry for entry in entries(tmp_path / "fusion.jsonl") if entry.get("kind") == "run"]
    # The same command again finds all it needs: nothing is run.
    again, _ = tune(library, *command, BEST="0.5")
    assert json.loads(again) == found
    runs = [entry for entry in entries(tmp_path / "fusion.jsonl") if entry.get("kind") == "run"]
    assert runs == lines


@pytest.mark.parametrize(
    ("code", "more", "complaint"),
    [
        ("import sys; print('no GPU'); sys.exit(3)", [], "no GPU"),
        ("import time; time.sleep(60)", ["--seconds", "1"], "printed no throughput in 1 s"),
    ],
)
def test_a_command_that_tells_nothing_is_named(
    tmp_path: Path, code: str, more: list[str], complaint: str
) -> None:
    arguments = ["fusion", "-np", "1", "-o", tmp_path, *more, "--", sys.executable, "-c", code]
    process = start(HERE, *arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the command, with Horovod's defaults," in err
    assert complaint in err
    assert "Traceback" not in err


@pytest.mark.long
def test_a_command_without_a_rate_is_judged_by_its_time(tmp_path: Path) -> None:
    code = "import os, time; time.sleep(0.1)"
    arguments = ["fusion", "-np", "1", "-o", tmp_path, "--trials", "6", "--pairs", "2", "--json"]
    out, _ = tune(HERE, *arguments, "--", sys.executable, "-c", code)
    found = json.loads(out)
    assert found["by_wall_time"]
    assert all(0 < rate < 10 for rate in found["trials"].values())
