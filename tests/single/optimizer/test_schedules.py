"""When nodes exchange: what `sync=` may be."""

from __future__ import annotations

import pytest

from hvd_ext.errors import UsageError
from hvd_ext.schedules import EVERY_STEP, ONE_STEP_LATE, DiLoCo, LocalSGD, parse


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("every_step", EVERY_STEP),
        ("one_step_late", ONE_STEP_LATE),
        ("local_sgd:steps=8", LocalSGD(8)),
        ("diloco:steps=100", DiLoCo(100, 0.7, 0.9)),
        ("diloco:outer_lr=1,steps=3,outer_momentum=0", DiLoCo(3, 1.0, 0.0)),
        (LocalSGD(2), LocalSGD(2)),
    ],
)
def test_a_schedule_is_read_and_written(given, meant):
    assert parse(given) == meant
    assert parse(str(parse(given))) == meant


@pytest.mark.parametrize(
    "given",
    [
        *("", "never", "local_sgd", "local_sgd:8", "local_sgd:steps=many", "diloco:steps="),
        *("diloco:steps=3,rate=1", "local_sgd:steps=3,outer_lr=1", None, 8),
    ],
)
def test_what_is_no_schedule_is_refused(given):
    with pytest.raises(UsageError, match=r"invalid sync .*: use one of every_step, one_step"):
        parse(given)


@pytest.mark.parametrize(
    "given",
    [
        *("local_sgd:steps=0", "diloco:steps=-1", "diloco:steps=2,outer_lr=0"),
        *("diloco:steps=2,outer_lr=nan", "diloco:steps=2,outer_momentum=1"),
    ],
)
def test_a_value_out_of_its_range_is_refused(given):
    with pytest.raises(UsageError, match=r"(steps|outer_lr|outer_momentum)=.*: give "):
        parse(given)
