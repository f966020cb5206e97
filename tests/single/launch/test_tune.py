"""`hvd-launch tune allreduce` on a simulated library: what it chooses, and how sure it is."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from hvd_ext.errors import HvdExtError, UsageError
from hvd_launch.backends.libraries import Backend
from hvd_launch.backends.tuning import DEFAULT
from hvd_launch.tune.allreduce import tuning as allreduce
from hvd_launch.tune.allreduce.choice import choose, hopeless
from hvd_launch.tune.allreduce.probe import ignored, plan
from hvd_launch.tune.allreduce.rank import MARK
from hvd_launch.tune.allreduce.result import Result, settings_text
from hvd_launch.tune.common.jobs import Outcome
from hvd_launch.tune.common.journal import Journal
from hvd_launch.tune.common.target import Target
from tests.support.launch.openmpi_rules import read_openmpi_rules

OPENMPI4 = Backend("openmpi4", (4, 1, 8), "mpirun", "mpirun")
OPENMPI5 = Backend("openmpi5", (5, 0, 11), "mpirun", "mpirun")
SIZES = [4096, 8192, 16384, 32768]


def times_of(**us: list[float]) -> dict[str, dict[int, dict[int, float]]]:
    """Six rounds that differ by a few percent, alike for all candidates."""
    noise = [1.0, 1.02, 0.99, 1.01, 0.98, 1.03]
    return {
        name: {
            size: {n: value * factor for n, factor in enumerate(noise)}
            for size, value in zip(SIZES, values, strict=True)
            if value
        }
        for name, values in us.items()
    }


def test_each_size_takes_what_won_there_and_beside_it() -> None:
    found = OPENMPI4.library.candidates(1)
    times = times_of(default=[10, 20, 40, 80], ring=[20, 30, 30, 40], linear=[9, 25, 50, 100])
    # linear won at 4 KiB alone: luck.
    assert choose(times, found, mixed=True).choices == ((0, DEFAULT), (16384, "ring"))
    assert choose(times, found, mixed=False).single == DEFAULT
    times = times_of(default=[10, 20, 40, 80], ring=[5, 10, 20, 40])
    assert choose(times, found, mixed=True).choices == ((0, DEFAULT), (4096, "ring"))
    assert choose(times, found, mixed=False).single == "ring"


def test_nothing_is_chosen_where_nothing_won() -> None:
    times = times_of(default=[10, 20, 40, 80], ring=[10.1, 20, 40, 80], linear=[30, 60, 0, 0])
    for mixed in (True, False):
        plan = choose(times, OPENMPI4.library.candidates(2), mixed)
        assert plan.single == DEFAULT
        assert plan.expected == 1


def test_rules_of_open_mpi_5_on_nodes_are_set_against_its_own_choice_too() -> None:
    found = OPENMPI5.library.candidates(2)
    # coll/tuned's ring beats coll/tuned, but not coll/han, which the library takes itself.
    times = times_of(default=[5, 5, 5, 5], tuned=[10, 20, 40, 80], ring=[9, 18, 30, 60])
    assert choose(times, found, mixed=True).single == DEFAULT
    times = times_of(default=[50, 50, 50, 50], tuned=[10, 20, 40, 80], ring=[9, 18, 30, 60])
    assert choose(times, found, mixed=True).choices == ((0, "tuned"), (4096, "ring"))


def test_what_is_hopeless_is_measured_once() -> None:
    times = times_of(default=[10, 20, 40, 80], ring=[31, 59, 0, 0])
    assert hopeless(times, "ring", 4096)
    assert not hopeless(times, "ring", 8192)
    assert not hopeless(times, "ring", 16384)


class Simulated:
    """Jobs on a library whose times are known: us a KiB by coll/tuned's id, "0" its own choice.

    With rules all takes `overhead` times as long. From `deaf_from` bytes on rules are not followed.
    """

    def __init__(
        self, us_per_kib: dict[str, float], overhead: float = 1.0, deaf_from: float = math.inf
    ) -> None:
        self.us_per_kib = us_per_kib
        self.overhead = overhead
        self.deaf_from = deaf_from
        self.ignored: set[str] = set()
        self.noise = random.Random(1)
        self.jobs = 0

    def __call__(self, target, command, settings, timeout_s, read) -> Outcome:
        self.jobs += 1
        task = json.loads(command[-1])
        variables = {s.name.removeprefix("OMPI_MCA_coll_tuned_"): s.value for s in settings}
        forced = variables.get("allreduce_algorithm", "0")
        if forced not in self.us_per_kib:
            return Outcome(1, 0.5, ("an algorithm that fails",))
        told = {}
        for name in task["read"]:
            value = variables[name.removeprefix("coll_tuned_")]
            told[name] = int(value) if value.isdecimal() else value
            if value in self.ignored:
                told[name] = 0
        facts = {"library": "Simulated", "size": 8, "ranks_per_node": [8], "variables": told}
        read(MARK + json.dumps({"kind": "facts", **facts}))
        rules = [(0, f"{forced} 0")]
        if "dynamic_rules_filename" in variables:
            text = Path(variables["dynamic_rules_filename"]).read_text()
            rules = read_openmpi_rules(text)[8]
        for size in task["sizes"]:
            taken = next(rule for least, rule in reversed(rules) if least <= size).split()[0]
            ruled = "dynamic_rules_filename" in variables
            if ruled and size >= self.deaf_from:
                taken = "0"
            us = self.us_per_kib[taken] * size / 1024 * (self.overhead if ruled else 1)
            samples = [us * math.exp(self.noise.gauss(0, 0.03)) for _ in range(3)]
            read(MARK + json.dumps({"kind": "time", "message_bytes": size, "us": samples}))
        return Outcome(0, 1.0, ())


def tuned(folder: Path, simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setattr(allreduce.jobs, "run", simulated)
    request = allreduce.Request(Target(OPENMPI4, 8, ()), tuple(SIZES), 4, 4, folder, False)
    journal = Journal(folder / "allreduce.jsonl", request.subject("Simulated"))
    return allreduce.Tuning(request, journal, lambda what, done, total: None).run()


SLOW = {"0": 1.0, "1": 9.0, "2": 2.0, "3": 1.5, "4": 1.01, "5": 1.5, "6": 1.4}


def test_a_gain_is_written_and_what_is_done_is_not_done_again(tmp_path, monkeypatch) -> None:
    simulated = Simulated({**SLOW, "6": 0.5})
    result = tuned(tmp_path, simulated, monkeypatch)
    assert result.native is not None
    assert result.native.overall.low > 1.8
    assert result.native.overall.high < 2.2
    assert result.dropped == {}
    rules = read_openmpi_rules((tmp_path / "openmpi_rules.conf").read_text())
    assert rules == {8: [(0, "0 0"), (4096, "6 0")], 9: [(0, "0 0")]}
    text = settings_text(result.native, result.facts, 8)
    assert f"dynamic_rules_filename={tmp_path / 'openmpi_rules.conf'}" in text
    jobs = simulated.jobs
    assert tuned(tmp_path, simulated, monkeypatch) == result
    assert simulated.jobs == jobs


@pytest.mark.parametrize("name", ["allreduce_algorithm", "dynamic_rules_filename"])
def test_what_is_set_is_not_tuned_over(name: str, tmp_path: Path, monkeypatch) -> None:
    variable = f"OMPI_MCA_coll_tuned_{name}"
    monkeypatch.setenv(variable, "1")
    with pytest.raises(UsageError, match=f"unset {variable}"):
        tuned(tmp_path, Simulated(SLOW), monkeypatch)


def test_without_a_gain_nothing_is_written_and_nothing_old_stays(tmp_path, monkeypatch) -> None:
    (tmp_path / "openmpi_rules.conf").write_text("of an earlier run")
    result = tuned(tmp_path, Simulated(SLOW), monkeypatch)
    assert result.native is None
    assert [path.name for path in tmp_path.iterdir()] == ["allreduce.jsonl"]


def test_what_does_not_hold_when_run_again_is_withdrawn(tmp_path, monkeypatch) -> None:
    result = tuned(tmp_path, Simulated({**SLOW, "6": 0.5}, overhead=2.0), monkeypatch)
    assert result.native is not None
    assert not result.native.overall.gained
    assert [path.name for path in tmp_path.iterdir()] == ["allreduce.jsonl"]


@pytest.mark.parametrize(("deaf_from", "where"), [(0, "8 KiB, 16 KiB"), (16384, "16 KiB")])
def test_rules_that_the_library_does_not_follow_are_not_kept(
    deaf_from: int, where: str, tmp_path, monkeypatch
) -> None:
    simulated = Simulated({**SLOW, "6": 0.5}, deaf_from=deaf_from)
    result = tuned(tmp_path, simulated, monkeypatch)
    told = result.dropped["the choice by message size"]
    assert told == f"was not followed by the library at {where}"
    # One algorithm for all sizes needs no rules.
    assert result.native is not None
    assert result.native.proposal.single == "rabenseifner"
    assert result.native.overall.gained
    assert [path.name for path in tmp_path.iterdir()] == ["allreduce.jsonl"]


def test_a_probe_is_slow_at_some_sizes_and_judged_at_all() -> None:
    found = OPENMPI4.library.candidates(1)
    times = times_of(default=[10, 20, 40, 80], ring=[9, 15, 30, 40], linear=[20, 60, 90, 300])
    tried = plan(times, found, ((0, DEFAULT), (8192, "ring")))
    assert tried is not None
    assert (tried.slow, tried.sizes) == ("linear", (8192, 16384))
    assert tried.choices == ((0, DEFAULT), (8192, "linear"), (32768, "ring"))
    usual = dict.fromkeys(SIZES, 10.0)
    # At 16 KiB both are alike, which tells nothing.
    forced = {4096: 20.0, 8192: 40.0, 16384: 11.0, 32768: 70.0}
    assert ignored(tried, usual, forced, {4096: 11, 8192: 37, 16384: 13, 32768: 10}) == []
    assert ignored(tried, usual, forced, {4096: 19, 8192: 11, 16384: 10, 32768: 10}) == [4096, 8192]
    alike = times_of(default=[1, 1, 1, 1], ring=[1.4, 1.4, 1.4, 1.4])
    assert plan(alike, found, ((0, "ring"),)) is None


def test_a_library_whose_rules_cannot_leave_a_size_to_it_gets_one_for_each() -> None:
    found = Backend("intelmpi", (2021, 19), "hydra", "mpirun").library.candidates(1)
    times = times_of(default=[10, 20, 40, 80], ring=[12, 22, 30, 40], knomial=[11, 30, 60, 90])
    assert choose(times, found, mixed=True).choices == ((0, "knomial"), (8192, "ring"))


def test_what_fails_or_is_not_taken_is_left_out_with_the_reason(tmp_path, monkeypatch) -> None:
    simulated = Simulated({name: us for name, us in SLOW.items() if name != "2"} | {"3": 0.1})
    simulated.ignored = {"3"}
    result = tuned(tmp_path, simulated, monkeypatch)
    assert result.native is None
    assert "an algorithm that fails" in result.dropped["nonoverlapping"]
    assert result.dropped["recursive_doubling"] == (
        "had OMPI_MCA_coll_tuned_allreduce_algorithm at 0, not at '3'"
    )
    with pytest.raises(HvdExtError, match="no rank could measure"):
        tuned(tmp_path / "other", Simulated({}), monkeypatch)
