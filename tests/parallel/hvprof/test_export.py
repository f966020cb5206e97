"""hvprof export next to a job: what it wrote last are the numbers of the recording."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import hvprof
from tests.parallel.hvprof import test_hang
from tests.parallel.hvprof.test_watch import job, until
from tests.support.hvprof.recorded import ENVIRONMENT, run

UNITS = ("calls", "bytes")


def test_ranks_that_are_blocked_are_counted(tmp_path: Path) -> None:
    folder, written = tmp_path / "run", tmp_path / "hvprof.prom"
    with test_hang.job(folder, 3, "sleeps"):
        test_hang.cause_of(folder, "late")
        command = [sys.executable, "-m", "hvprof", "export", folder, "--prometheus", written]
        done = run([*command, "--once", "--longer-than", "1"])
    assert (done.returncode, done.stderr) == (0, "")
    assert 'hvprof_blocked_ranks{recording="run"} 2.0' in written.read_text()


def test_the_last_writing_has_the_recordings_numbers(tmp_path: Path) -> None:
    folder, written = tmp_path / "run", tmp_path / "hvprof.prom"
    command = [sys.executable, "-m", "hvprof", "export", folder, "--prometheus", written]
    with job(folder, 2, "slow") as end:
        until(folder, "meta.json")
        export = subprocess.Popen(
            [*map(str, command), "--every", "0.3"],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(tmp_path, "hvprof.prom")
        # It is whole at any time.
        assert "hvprof_up" in written.read_text()
        end()
        assert export.wait(90) == 0
    assert export.stderr is not None
    assert "the job has ended" in export.stderr.read()
    found = {
        (sample.name, sample.labels.get("rank"), sample.labels.get("operation")): sample.value
        for family in text_string_to_metric_families(written.read_text())
        for sample in family.samples
        if sample.labels.get("traffic", "data") == "data"
    }
    assert found["hvprof_up", None, None] == 0
    ranks = hvprof.load(folder).ranks
    for rank in ranks:
        assert found["hvprof_steps_total", str(rank.rank), None] == rank.step_count > 0
    cells = [
        cell
        for rank in ranks
        for cell in rank.cells
        if (cell.operation, cell.traffic) == ("allreduce", "data")
    ]
    of_all = {name: found[f"hvprof_operation_{name}_total", None, "allreduce"] for name in UNITS}
    assert of_all["calls"] == sum(cell.calls for cell in cells) > 0
    assert of_all["bytes"] == sum(cell.message_bytes for cell in cells)
