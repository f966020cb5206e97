"""hvprof hang on jobs of every MPI library that is here, and the end of such jobs."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from hvd_ext.system.process import descendants
from tests.support.hvprof.hanging import PATIENCE_S, cause_of, job, standing
from tests.support.hvprof.recorded import PROGRAMS, mpirun
from tests.support.launch.launching import WITHOUT_HOROVOD
from tests.support.launch.on_every_mpi import LIBRARIES, alive, bin_of, horovod_bin_of, wait_for

# This environment's library has its own tests.
OTHERS = [name for name in LIBRARIES if name != "environment"]
WITH_PACKAGES = (PROGRAMS / "with_packages.py", sysconfig.get_path("purelib"))
pytestmark = [pytest.mark.long, pytest.mark.parametrize("library", OTHERS, indirect=True)]


@dataclass(frozen=True)
class Library:
    """An MPI library."""

    name: str
    mpi: Path

    def launcher(self, ranks: int, mpi: Path | None = None) -> list[str]:
        return mpirun(ranks, mpi or self.mpi)

    def variables(self, mpi: Path | None = None) -> dict[str, str]:
        return {"PATH": f"{mpi or self.mpi}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> Library:
    return Library(request.param, bin_of(request.param))


@pytest.mark.parametrize(
    ("how", "size", "kind", "ranks", "said"),
    [
        ("stopped", 2, "stopped", (1,), "rank 0 has been in Allreduce 6 of world (7.812 KiB)"),
        ("killed", 3, "gone", (1,), "ranks 0 and 2 have been in Allreduce 6 of world"),
        ("mismatch", 2, "mismatch", (0, 1), "rank 1 called Bcast as number 6 of world"),
        ("circle", 2, "deadlock", (0, 1), "is in Recv from rank 0"),
        # A late sender, a receive that another rank waits for, and Wait for Irecv.
        ("chain", 4, "late", (3,), "ranks 0 and 1 wait, too"),
    ],
)
def test_the_cause_is_named(
    library: Library,
    how: str,
    size: int,
    kind: str,
    ranks: tuple[int, ...],
    said: str,
    tmp_path: Path,
) -> None:
    python = (library.mpi / "python",)
    with job(
        *(tmp_path / "run", size, how),
        launcher=library.launcher(size),
        python=python,
        variables=library.variables(),
    ):
        cause = cause_of(tmp_path / "run", kind)
    assert cause.ranks == ranks
    assert said in cause.sentence


@pytest.mark.parametrize(
    ("how", "said"),
    [("bucket", "gradient exchange, bucket 1 of 1 (2.bias"), ("without Horovod", "of 'second'")],
)
def test_a_wait_of_hvd_ext_is_named(library: Library, how: str, said: str, tmp_path: Path) -> None:
    """With this environment's torch, and without Horovod."""
    with job(
        *(tmp_path / "run", 2, how),
        program="waits_by_name.py",
        launcher=library.launcher(2),
        python=(library.mpi / "python", *WITH_PACKAGES),
        variables={**library.variables(), **WITHOUT_HOROVOD},
    ):
        cause = cause_of(tmp_path / "run", "late")
    assert cause.ranks == (1,)
    assert said in cause.sentence


@pytest.mark.parametrize(
    ("how", "kind", "ranks", "said"),
    [
        ("missing", "late", (1,), "rank 0 has been in Horovod's allreduce of 'second'"),
        ("crossed", "deadlock", (0, 1), "Horovod's allreduce of 'first', which rank 0 has not"),
    ],
)
def test_a_tensor_of_horovod_is_named(
    library: Library, how: str, kind: str, ranks: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    mpi = horovod_bin_of(library.name)
    with job(
        *(tmp_path / "run", 2, how),
        program="waits_by_name.py",
        launcher=library.launcher(2, mpi),
        # hvd_ext is installed in this environment alone, and PyTorch finds it by that.
        python=(mpi / "python", *WITH_PACKAGES),
        variables=library.variables(mpi),
    ):
        cause = cause_of(tmp_path / "run", kind)
    assert cause.ranks == ranks
    assert said in cause.sentence


def test_nothing_of_a_job_that_hangs_is_left(library: Library, tmp_path: Path) -> None:
    """Launchers differ in what they do about SIGTERM, and a rank that is stopped in none."""
    folder = tmp_path / "run"
    with job(
        *(folder, 2, "stopped", "--on-hang", "2", "--abort-on-hang"),
        launcher=library.launcher(2),
        python=(library.mpi / "python",),
        variables=library.variables(),
    ) as started:
        wait_for(lambda: sum(bool(one.pid) for one in standing(folder)) == 2, PATIENCE_S)
        pids = [*descendants(started.pid), *(one.pid for one in standing(folder))]
        said = started.communicate(timeout=PATIENCE_S)[1].decode()
    assert started.returncode == 75, said
    assert "hvprof: the job hangs: for " in said
    wait_for(lambda: not any(map(alive, pids)))
