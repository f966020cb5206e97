"""What communication slows down: how the kernel's counts are shared out, said and compared."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import hvprof
from hvprof.analysis.contention import StepParts, parts_by_rank
from hvprof.cli import main
from hvprof.format.writer import write_rank
from hvprof.model import Region, Step
from tests.support.hvprof.made_recordings import write_job

# Of each step of each rank: it computes for 200 ms, 80 of them without its core.
STEP = Step(
    index=0,
    start_s=0.0,
    time_s=0.31,
    compute_s=0.2,
    exposed_s=0.08,
    overlapped_s=0.1,
    io_s=0.02,
    other_s=0.01,
    cpu_s=0.13,
    queued_s=0.08,
    communicating_s=0.1,
    process_s=0.23,
    preemptions=5,
    page_faults=300,
)
STEPS = 40


def write(
    directory: Path,
    ranks: int = 2,
    *,
    knows_queue: bool = True,
    cores: int = 2,
    first_s: float = 0.0,
    **changes: float,
) -> Path:
    """A job on one host whose steps are all alike; before them, one computed for `first_s`."""
    write_job(directory, ranks)
    step = dataclasses.replace(STEP, **changes)
    whole = {
        field.name: STEPS * (getattr(step, field.name) or 0.0)
        for field in dataclasses.fields(Step)
        if field.name != "start_s"
    }
    for computed in ("time_s", "compute_s", "cpu_s", "process_s"):
        whole[computed] += first_s
    total = Step(**{**whole, "index": STEPS, "start_s": 0.0})
    for rank in hvprof.load(directory).ranks:
        made = dataclasses.replace(
            rank,
            steps=tuple(dataclasses.replace(step, index=index) for index in range(STEPS)),
            step_count=STEPS,
            all_steps=total,
            cores=cores,
            host_cores=cores,
            knows_queue=knows_queue,
            mpi_library="Open MPI v4.1.8",
        )
        write_rank(directory, made)
    return directory


def parts_of(directory: Path) -> StepParts:
    found = parts_by_rank(hvprof.load(directory))
    assert len(set(found.values())) == 1
    parts = found[0]
    named = (parts.compute_s, parts.exposed_s, parts.io_s, parts.other_s)
    unknown = (parts.slowed_s or 0.0) + (parts.waiting_s or 0.0)
    assert sum(named) + unknown == pytest.approx(parts.time_s)
    return parts


def test_the_queue_is_communications_where_it_used_the_cores(tmp_path: Path) -> None:
    parts = parts_of(write(tmp_path / "a"))
    assert parts.slowed_s == pytest.approx(0.08)
    assert parts.waiting_s == pytest.approx(0)
    # The thread was off its core for 80 of 210 ms, wherever it computed.
    assert parts.compute_s == pytest.approx(0.2 * 130 / 210)
    assert parts.communicating_cores == pytest.approx(2 * 0.1 / 0.31)
    free = hvprof.Analysis(hvprof.load(tmp_path / "a")).free_speedup
    assert free is not None
    assert free.speedup == pytest.approx(0.31 / (0.31 - 0.08 - 0.08))
    assert (free.low, free.high) == pytest.approx((free.speedup, free.speedup))


def test_a_first_step_that_takes_long_tells_nothing_of_the_others(tmp_path: Path) -> None:
    # 0.06 s a step more on a core, by the mean: longer than a step takes without communication.
    found = write(tmp_path / "a", first_s=STEPS * 0.06)
    free = hvprof.Analysis(hvprof.load(found)).free_speedup
    assert free is not None
    assert free.speedup == pytest.approx(0.31 / (0.31 - 0.08 - 0.08))


def test_hooks_are_communication_too(tmp_path: Path) -> None:
    directory = write(tmp_path / "a")
    # Blocks of four steps each, the first of which took long, and one that is not whole.
    blocks_s = (4.0, *[4 * 0.01] * 9, 0.02)
    hooks = Region("gradient hooks", "compute", 42, sum(blocks_s), 0.01, 1.0, (), 4, blocks_s)
    for rank in hvprof.load(directory).ranks:
        write_rank(directory, dataclasses.replace(rank, regions=(*rank.regions, hooks)))
    free = hvprof.Analysis(hvprof.load(directory)).free_speedup
    assert free is not None
    assert free.speedup == pytest.approx(0.31 / (0.31 - 0.08 - 0.08 - 0.01))


def test_communication_is_not_blamed_for_more_than_it_ran(tmp_path: Path) -> None:
    # Other programs had the cores for the rest.
    parts = parts_of(write(tmp_path / "a", communicating_s=0.02, process_s=0.15))
    assert parts.slowed_s == pytest.approx(0.02)
    assert parts.waiting_s == pytest.approx(0.06)


def test_ranks_that_share_a_core_wait_for_each_other_too(tmp_path: Path) -> None:
    # Two cores, four ranks of 0.13 s each: 0.26 s without any communication.
    shared = {"time_s": 0.35, "compute_s": 0.31, "exposed_s": 0.03, "io_s": 0.0, "queued_s": 0.19}
    parts = parts_of(write(tmp_path / "a", 4, communicating_s=0.05, process_s=0.18, **shared))
    assert parts.slowed_s == pytest.approx(0.35 - 0.03 - 4 * 0.13 / 2)
    assert parts.waiting_s == pytest.approx(0.19 - 0.06)


def test_a_kernel_that_does_not_count_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write(tmp_path / "a", knows_queue=False)
    parts = parts_of(run)
    assert parts.slowed_s is None
    assert parts.waiting_s is None
    free = hvprof.Analysis(hvprof.load(run)).free_speedup
    assert free is not None
    assert not free.knows_queue
    # From what is exposed to all that may have been taken: 80 of 210 ms off the core.
    assert free.low == free.speedup == pytest.approx(0.31 / 0.23)
    assert free.high == pytest.approx(0.31 / (0.23 - 0.08))
    main(["report", str(run), "--html", str(tmp_path / "a.html")])
    assert "does not count" in (tmp_path / "a.html").read_text()
    main(["report", str(run)])
    assert "its CPU contention is unknown here" in " ".join(capsys.readouterr().out.split())


def test_the_verdict_and_the_advice_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write(tmp_path / "a")
    main(["report", str(run), "--html", str(tmp_path / "a.html")])
    page = (tmp_path / "a.html").read_text()
    assert (
        "its threads take 0.6 of 2 cores of a host, and computing waits for them for 26 %" in page
    )
    assert "2.07 x" in page
    main(["report", str(run)])
    text = capsys.readouterr().out
    assert "slowed by communication 80.00" in text
    assert "a step: 130.00 ms on a core, 5 preemptions, 300 page faults" in text
    assert "2.07 x with zero-cost communication (2.07 to 2.07)" in text
    (advice,) = [
        one
        for one in hvprof.Analysis(hvprof.load(run)).advice
        if one.setting.startswith("OMPI_MCA_mpi_yield_when_idle=1")
    ]
    assert advice.most_percent == pytest.approx(100 * 0.08 / 0.31)
    assert "Horovod's thread takes 0.6 of the 2 cores" in advice.evidence
    assert "OMPI_MCA_mpi_yield_when_idle=1 horovodrun" in advice.command
    for rank in hvprof.load(run).ranks:
        write_rank(run, dataclasses.replace(rank, yields=True))
    named = [one.setting for one in hvprof.Analysis(hvprof.load(run)).advice]
    assert not any(setting.startswith("OMPI") for setting in named)
    assert any("OMP_NUM_THREADS" in setting for setting in named)


def test_two_sides_are_compared_where_both_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write(tmp_path / "a")
    second = write(tmp_path / "b", queued_s=0.01, compute_s=0.13, time_s=0.24)
    main(["compare", str(first), str(second)])
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("b is faster: a step takes 240 ms instead of 310 ms (1.29 x as fast")
    assert "Slowed by communication, a step, warm-up included: a 80.0 ms, b 10.0 ms." in text
    main(["report", str(second), "--html", str(tmp_path / "b.html")])
    main(["compare", str(first), str(tmp_path / "b.html")])
    text = " ".join(capsys.readouterr().out.split())
    assert "Slowed by communication, a step, warm-up included: a 80.0 ms, b.html 10.0 ms." in text
