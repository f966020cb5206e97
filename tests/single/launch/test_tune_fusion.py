"""`hvd-launch tune fusion` apart from any job: reading throughput, the model, the search."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_ext.errors import UsageError
from hvd_launch.backends.libraries import Backend
from hvd_launch.tune.fusion import model as fusion
from hvd_launch.tune.fusion.model import AUTOTUNE, CYCLES_MS, THRESHOLDS_MIB, Point
from hvd_launch.tune.fusion.rate import Reader, throughput

OPENMPI4 = Backend("openmpi4", (4, 1, 8), "mpirun", "mpirun")
OPENMPI5 = Backend("openmpi5", (5, 0, 11), "mpirun", "mpirun")


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("Iter #3: 123.4 img/sec per GPU", 123.4),
        ("Img/sec per CPU: 12.5 +-0.4", 12.5),
        ("Total img/sec on 4 GPU(s): 493.6 +-5.1", 493.6),
        ("step 300: loss 0.1234  56.7 images/s; wrote runs/x", 56.7),
        ("1.5e3 samples/s", 1500.0),
        ("100%|####| 10/10 [00:01<00:00,  9.81it/s]", 9.81),
        ("loss 0.25 at 3 s", None),
        ("0.0 img/sec", None),
        ("img/sec: nan", None),
    ],
)
def test_throughput_is_found_in_what_trainings_print(line: str, rate: float | None) -> None:
    found = Reader(None).read(line)
    assert (found.rate if found else None) == rate


def test_a_run_has_one_throughput() -> None:
    reader = Reader(None)
    lines = [f"Iter #{n}: {rate} img/sec" for n, rate in enumerate((1, 50, 60, 70))]
    lines += ["Img/sec per GPU: 45", "Total img/sec on 2 GPU(s): 90"]
    read = [reading for line in lines if (reading := reader.read(line))]
    assert throughput(read) == 60  # the first is warming up
    assert throughput(read[4:]) == 90  # what sums up comes last
    assert throughput([]) is None
    own = Reader(r"speed=(\S+)").read("speed=7 img/sec: 8")
    assert own is not None
    assert own.rate == 7
    for wrong, complaint in (("(", "invalid regular expression"), ("speed", "in a group")):
        with pytest.raises(UsageError, match=complaint):
            Reader(wrong)


TERM = st.floats(0.01, 1)


@settings(max_examples=20, deadline=None)
@given(st.tuples(*[TERM] * 5))
def test_the_model_finds_the_terms_that_made_the_times(terms: tuple[float, ...]) -> None:
    scaled = (terms[0], terms[1], terms[2] / 100, terms[3] / 10, terms[4])
    grid = list(itertools.starmap(Point, itertools.product(THRESHOLDS_MIB, CYCLES_MS)))
    model = fusion.fit({point: 1 / fusion.predict(scaled, point) for point in grid})
    assert model == pytest.approx(scaled, rel=1e-3, abs=1e-6)


def test_the_search_begins_with_the_defaults_and_ends_with_the_best() -> None:
    truth = (1.0, 4.0, 0.02, 0.05, 0.5)
    rates: dict[Point, float] = {}
    for _ in range(9):
        point = fusion.propose(rates)
        assert point is not None
        rates[point] = 1 / fusion.predict(truth, point)
    assert next(iter(rates)) == fusion.DEFAULT
    best = min(
        itertools.starmap(Point, itertools.product(THRESHOLDS_MIB, CYCLES_MS)),
        key=lambda point: fusion.predict(truth, point),
    )
    assert best in fusion.finalists(rates)
    assert fusion.DEFAULT not in fusion.finalists(rates)


def test_what_is_kept_beat_the_defaults_beyond_doubt() -> None:
    point = Point(16, 5)
    steady = [100.0, 101.0, 99.0, 100.0, 102.0]
    lucky = [90.0, 180.0, 95.0, 85.0, 99.0]
    for found, kept in (
        ({point: [r * 1.1 for r in steady], AUTOTUNE: lucky}, point),
        ({point: lucky, AUTOTUNE: steady}, fusion.DEFAULT),
        ({point: [r * 1.1 for r in steady], AUTOTUNE: [r * 1.3 for r in steady]}, AUTOTUNE),
    ):
        assert fusion.keep(fusion.gains({fusion.DEFAULT: steady, **found})) == kept
