"""hvprof hang on jobs that wait in Horovod, and in hvd_ext's optimizer: by the tensor's name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.hvprof.hanging import cause_of, job
from tests.support.hvprof.recorded import run
from tests.support.launch.launching import WITHOUT_HOROVOD

pytest.importorskip("horovod", reason="Horovod is not installed")
VARIABLES = {"set": {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}, "without Horovod": WITHOUT_HOROVOD}


@pytest.mark.parametrize(
    ("how", "size", "kind", "ranks", "said"),
    [
        ("missing", 2, "late", (1,), "rank 0 has been in Horovod's allreduce of 'second'"),
        ("without Horovod", 2, "late", (1,), "rank 0 has been in hvd_ext's allreduce of 'second'"),
        ("bucket", 2, "late", (1,), "hvd_ext's gradient exchange, bucket 1 of 1 (2.bias to "),
        pytest.param(
            *("crossed", 2, "deadlock", (0, 1)),
            "Horovod's allreduce of 'first', which rank 0 has not",
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("missing", 4, "late", (3,), "ranks 0 to 2 have been in Horovod's allreduce of 's"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("set", 3, "late", (2,), "Horovod's allreduce of 'first' in process set 1; rank 2"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("bucket", 4, "late", (3,), "ranks 0 to 2 have been in hvd_ext's gradient exchange"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_tensor_and_the_rank_are_named(
    how: str, size: int, kind: str, ranks: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    variables = VARIABLES.get(how, {})
    with job(tmp_path / "run", size, how, program="waits_by_name.py", variables=variables):
        cause = cause_of(tmp_path / "run", kind)
        assert cause.ranks == ranks
        assert said in cause.sentence
        done = run([sys.executable, "-m", "hvprof", "hang", tmp_path / "run", "--longer-than", "1"])
        assert (done.returncode, done.stderr) == (75, "")
        assert said in done.stdout
