"""The MPI libraries that tests use, programs for their ranks, and hvd-launch on them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from hvd_launch.backends.libraries import Backend
from testbed.emulated_hosts import INTERFACE, EmulationError, emulated_hosts

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(sys.executable).parent


@dataclass(frozen=True)
class Mpi:
    """An MPI library that tests are run on.

    Attributes:
        folder: the bin folder of its environment.
        backend: as hvd-launch calls it; "": whatever MPI this Python has.
        made_by: what makes the environment.
        cannot: what it cannot do here, of the marker `needs`, and why.
    """

    folder: Path
    backend: str = ""
    made_by: str = "make mpis"
    cannot: Mapping[str, str] = field(default_factory=dict)


_BESIDE = ROOT / ".venvs"
_FAILS = "an algorithm that fails shows where its rules hold, without timing (test_tune)"
_LOST_WORDS = "its mpiexec ends at once after MPI_Abort, and mostly loses what the rank said"
_NOT_FOR_SRUN = "is built for its own launcher alone, which tests start without Slurm"
# The one list. What is skipped on a library is skipped for a reason that stands here.
LIBRARIES = {
    "environment": Mpi(HERE, made_by="make env", cannot={"slow rules": _FAILS}),
    "openmpi5": Mpi(_BESIDE / "openmpi5" / "bin", "openmpi5", cannot={"slow rules": _FAILS}),
    "mpich5": Mpi(
        _BESIDE / "mpich5" / "bin",
        "mpich",
        cannot={
            "slow rules": _FAILS,
            "last words": _LOST_WORDS,
        },
    ),
    "intelmpi": Mpi(
        _BESIDE / "intelmpi" / "bin",
        "intelmpi",
        cannot={
            "ucx": "its package has no libfabric, through which it would reach UCX",
            "failing rules": "for an algorithm that it has not it takes another",
            "control variables": "MPI_T shows I_MPI_ADJUST_ALLREDUCE as empty, whatever it is",
            "last words": _LOST_WORDS,
            "no PATH": "its mpirun is a shell script that calls the system's programs",
            "slurm": _NOT_FOR_SRUN,
        },
    ),
    "mvapich2": Mpi(
        _BESIDE / "mvapich2" / "bin",
        "mvapich2",
        "make mpis MVAPICH2=ARCHIVE_OR_PREFIX",
        cannot={
            "ucx": "it sends through InfiniBand's verbs itself",
            "network": "between hosts it sends through InfiniBand's verbs alone",
            "slow rules": "it has no rules by message size that can be relied on",
            "failing rules": "it has no rules by message size that can be relied on",
            "last words": _LOST_WORDS,
            "control variables": "MPI_T does not show what MV2_INTER_ALLREDUCE_TUNING forces",
            "slurm": _NOT_FOR_SRUN,
        },
    ),
}
# `make test` takes the environment's library, and the others where a test names them all.
IN_TEST_OR_LONG = [
    pytest.param(name, marks=[pytest.mark.long] * (name != "environment")) for name in LIBRARIES
]
# One write for a line: under --bare the ranks share standard output.
SUM = """
import os
from mpi4py import MPI
os.write(1, b"sum %d\\n" % MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank))
"""
# Rank 1 ends in the way asked for while rank 0 would go on for long.
FAIL = """
import os, signal, sys, time
from mpi4py import MPI
comm, how = MPI.COMM_WORLD, sys.argv[1]
for number in range(30):
    print("rank", comm.rank, "line", number)
if comm.rank == 1:
    print("last words")
    time.sleep(0.5)
    if how == "abort":
        comm.Abort(43)
        time.sleep(60)  # MPICH's may return before the launcher has ended the rank
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.excepthook = lambda *error: (print("ValueError: boom", file=sys.stderr), os._exit(42))
    raise ValueError("boom")
while True:
    print("rank 0 goes on")
    time.sleep(0.05)
"""
WAIT = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(100)"


def bin_of(name: str, *needs: str) -> Path:
    """The bin folder of an environment with an MPI and mpi4py.

    Skips the test if there is none, or if the library cannot do what the test needs.
    """
    mpi = LIBRARIES[name]
    for need in needs:
        if need in mpi.cannot:
            pytest.skip(f"{name}: {mpi.cannot[need]}")
    if not (mpi.folder / "python").exists():
        pytest.skip(f"no {mpi.folder}: run `{mpi.made_by}`")
    return mpi.folder


def horovod_bin_of(name: str, *needs: str) -> Path:
    """As `bin_of`, of the environment beside that has Horovod built against this library."""
    bin_of(name, *needs)
    folder = _BESIDE / f"{name}-horovod" / "bin"
    if not (folder / "python").exists():
        pytest.skip(f"no {folder}: run `make mpi-horovod MPI={name}`")
    return folder


def can(library: Path, what: str) -> bool:
    """Whether the library of this bin folder can do what the list says of some that they cannot."""
    return all(what not in mpi.cannot for mpi in LIBRARIES.values() if mpi.folder == library)


def backend_of(library: Path) -> Backend:
    """The MPI library and its launcher, as hvd-launch finds them there."""
    code = "from hvd_launch.backends.detect import find_backend; print(find_backend())"
    done = subprocess.run(
        [library / "python", "-c", code],
        env=environment(library),
        capture_output=True,
        text=True,
        check=True,
    )
    found = eval(done.stdout, {"Backend": Backend})
    assert isinstance(found, Backend)
    return found


def hvd_launch(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hvd_launch", *arguments]


def environment(library: Path, **extra: str) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{library}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'launch'}{os.pathsep}{ROOT / 'profiling'}",
        **extra,
    }


def start(*arguments: str, library: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        hvd_launch(*arguments),
        env=environment(library),
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(library: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        hvd_launch(*arguments),
        env=environment(library, **extra),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=100,
        check=False,
    )


@contextmanager
def on_two_hosts(library: Path) -> Iterator[tuple[list[str], str, dict[str, str]]]:
    """Two emulated hosts, of a slot each, for jobs of the library of this bin folder.

    Yields what stands before hvd-launch, its -H, and variables by which the library reaches the
    hosts and sends by TCP. Skips the test where there can be no such hosts.
    """
    backend = backend_of(library)
    variables = {
        backend.library.agent_variable: str(ROOT / "testbed" / "enter_host.sh"),
        "OMPI_MCA_btl_tcp_if_include": INTERFACE,
        "OMPI_MCA_btl": "^openib,ofi,uct,usnic",
        "OMPI_MCA_pml": "ob1",
        "FI_PROVIDER": "tcp",
    }
    if backend.name == "intelmpi":
        # Its package has no libfabric, by which it sends to other hosts; MPICH's has.
        variables["LD_LIBRARY_PATH"] = str(bin_of("mpich5").parent / "lib" / "mpich")
    try:
        with emulated_hosts(2, gbit=1) as hosts:
            yield (
                ["nsenter", "-t", str(hosts.pids[-1]), "--uts", "--net"],
                ",".join(f"{host}:1" for host in hosts.names),
                variables | hosts.environment(),
            )
    except EmulationError as error:
        pytest.skip(str(error))


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
