"""Pictures of the terminal: what `hvd-launch tune` prints on 80 and on 120 columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from hvd_ext.allreduce.table import Row
from hvd_ext.arithmetic.statistics import Interval
from hvd_launch.backends.libraries import Backend
from hvd_launch.simulate.platform import Platform
from hvd_launch.tune.allreduce import report, simulated, simulated_report
from hvd_launch.tune.allreduce.choice import Proposal
from hvd_launch.tune.allreduce.result import Result, Verdict
from hvd_launch.tune.fusion.model import AUTOTUNE, DEFAULT, Point, gains, keep
from hvd_launch.tune.fusion.report import print_found
from hvd_launch.tune.fusion.runs import Found
from tests.support.hvprof.pictures import WIDTHS, check_picture

GOLDEN = Path(__file__).parent / "golden"
FOLDER = Path("/home/user/tuning")
FIGURES = {"link Gbit/s": 97.3, "latency us": 1.7}
SIZES = tuple(2**power for power in range(12, 27))


def draw_allreduce(shown: Console) -> None:
    uncertain = Interval(0.1, 1.1, 12.0)
    gained = Interval(1.32, 1.41, 1.52)
    native = Verdict(
        Proposal(((0, "default"), (2**20, "segmented_ring_64k"), (2**23, "ring")), 1.4),
        (),
        gained,
        {size: uncertain if size == 2**21 else gained for size in SIZES},
    )
    table = Verdict(Proposal(((0, "native"), (2**14, "rabenseifner")), 1.1), (), uncertain, {})
    dropped = {"nonoverlapping": "had OMPI_MCA_coll_tuned_allreduce_algorithm at 0, not at '2'"}
    candidates = Backend("openmpi4", (4, 1, 8), "mpirun", "mpirun").library.candidates(1)
    result = Result({"size": 8}, candidates, {}, native, table, dropped)
    report.print_result(result, FOLDER, shown)


def draw_fusion(shown: Console) -> None:
    rates = [101.2, 100.3, 99.5, 102.1, 100.8]
    finals = {
        DEFAULT: rates,
        Point(16, 5): [1.1 * rate for rate in rates],
        Point(128, 25): [1.01 * rate for rate in reversed(rates)],
        AUTOTUNE: [0.97 * rate for rate in rates],
    }
    found = gains(finals)
    trials = {Point(16, 5): 111.4, Point(128, 25): 102.5, DEFAULT: 100.6, Point(16, 1): 98.1}
    trials |= {Point(128, 5): 101.1, Point(4, 2): 97.3, Point(64, 25): 95.2}
    print_found(Found(trials, finals, found, keep(found), True), FOLDER, shown)
    print_found(Found(trials, finals, found, DEFAULT, False), FOLDER, shown)


def draw_simulate(shown: Console) -> None:
    sizes = SIZES[:11]
    request = simulated.Request(Platform(), (64, 4096), 8, sizes, "ompi")
    simulated_report.print_plan(simulated.make_plan(request), sizes, shown)
    measured = ((4096, {"native": 112.0, "tree": 87.5}), (2**22, {"native": 9e3, "tree": 9.1e3}))
    choices = ((0, "tree"), (2**20, "native"))
    row = Row(512, 8, "host", choices, measured_us=measured, simulated="fat tree of 100 Gbit/s")
    simulated_report.print_rows((row,), shown)
    simulated_report.print_platform(FIGURES, FOLDER / "platform.json", shown)


DRAWN: dict[str, tuple[str, Callable[[Console], None]]] = {
    "allreduce": ("hvd-launch tune allreduce -np 8 -o tuning", draw_allreduce),
    "fusion": ("hvd-launch tune fusion -np 4 -o tuning -- python train.py", draw_fusion),
    "simulate": ("hvd-launch tune allreduce --simulate platform.json", draw_simulate),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", DRAWN)
def test_what_a_terminal_shows_of_a_made_result(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The time that simulating takes is a share of this machine's cores.
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    title, draw = DRAWN[name]
    check_picture(name, title, width, draw, GOLDEN)


def test_every_picture_is_drawn() -> None:
    assert {path.stem.rpartition("_")[0] for path in GOLDEN.glob("*.svg")} == set(DRAWN)
