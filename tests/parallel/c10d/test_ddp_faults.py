"""A rank that fails: the others end, name it, and leave nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.launch.launching import LAUNCHERS, rank_environment, run_to_end


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("torch_")}


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("step", "if it was only slow, raise HVD_EXT_STALL_TIMEOUT_S"),
        ("timeout", "if it was only slow, raise the timeout of the process group"),
        ("sharded", "if it was only slow, raise HVD_EXT_STALL_TIMEOUT_S"),
        pytest.param(
            *("attach", "rank 2 did not reach hvd_ext.c10d.attach() within 3 s"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("leave", "rank 2 ({host}) ended before a gradient exchange"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("group", "rank 2 ({host}) did not reach a gradient exchange within 3 s"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("step device", "rank 2 ({host}) did not reach a gradient exchange within 3 s"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("step device nodes", "rank 2 (node2) did not reach a gradient exchange within 3 s"),
            marks=pytest.mark.long,
        ),
        pytest.param("kill device", "signal 9", marks=pytest.mark.long),
        pytest.param("kill", "signal 9", marks=pytest.mark.long),
        pytest.param("raise", "ValueError: loss is NaN", marks=pytest.mark.long),
    ],
)
def test_the_job_ends_and_the_rank_is_named(launch, how, says):
    before, start = shared_memory(), time.monotonic()
    done = launch(
        3,
        ["tests/programs/c10d/ddp_fault.py", *how.split()],
        # A rank's own error must end the job long before ranks are given up.
        env={
            "HVD_EXT_STALL_TIMEOUT_S": "300"
            if how.split()[0] in ("kill", "raise", "timeout")
            else "3"
        },
        timeout=90,
    )
    assert done.returncode != 0, done.stdout
    host = socket.gethostname()
    if how in ("step", "timeout", "sharded"):
        what = "FSDP's all-gather" if how == "sharded" else "a gradient exchange"
        assert f"rank 2 ({host}) did not reach {what} within 3 s" in done.stdout, done.stdout
    assert says.format(host=host) in done.stdout
    assert "all steps done" not in done.stdout
    assert time.monotonic() - start < 80
    assert shared_memory() <= before


@pytest.mark.long
def test_ranks_that_are_not_one_job_of_mpi_agree_over_the_store():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # Set in the rank: hvd-launch sets its own job's there.
    group = ["MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}", "WORLD_SIZE=2"]
    command = [*LAUNCHERS["hvd-launch"](1), "env", *group]
    program = [sys.executable, "tests/programs/c10d/ddp_of_two_jobs.py"]
    with ThreadPoolExecutor() as pool:
        started = [
            pool.submit(
                run_to_end,
                *([*command, f"RANK={rank}", *program], rank_environment({}), 90),
            )
            for rank in ("0", "1")
        ]
    for done in (future.result() for future in started):
        assert done.returncode == 0, done.stdout
        assert "reduced where they lie" in done.stdout, done.stdout


@pytest.mark.long
def test_a_full_shm_has_buckets_copied():
    inside = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs -o size=4m x /dev/shm && "$@"',
        "sh",
    ]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small /dev/shm")
    command = [*LAUNCHERS["hvd-launch"](2), sys.executable, "tests/programs/c10d/ddp_full_shm.py"]
    # MPI's own memory would not fit either.
    done = run_to_end([*inside, *command], rank_environment({"OMPI_MCA_btl": "tcp,self"}), 90)
    assert done.returncode == 0, done.stdout
    line = "WARNING:hvd_ext:hvd_ext: DDP's buckets are copied to shared memory and back: "
    assert done.stdout.count(line) == 1, done.stdout
    assert "and /dev/shm has" in done.stdout
    assert "MiB, copied to shared memory and back" in done.stdout
