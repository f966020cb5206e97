"""`hvd-launch tune` apart from any job: choosing, writing, reading, and how sure it is."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_ext.errors import HvdExtError, UsageError
from hvd_launch.backends import Backend
from hvd_launch.tune import allreduce, fusion
from hvd_launch.tune.allreduce import Result
from hvd_launch.tune.candidates import DEFAULT, library
from hvd_launch.tune.choice import choose, hopeless
from hvd_launch.tune.fusion import AUTOTUNE, CYCLES_MS, THRESHOLDS_MIB, Point
from hvd_launch.tune.jobs import Outcome, Place
from hvd_launch.tune.journal import Journal
from hvd_launch.tune.native_forms import (
    intel_rules,
    mpich_selection,
    openmpi_rules,
    read_openmpi_rules,
    ruled,
)
from hvd_launch.tune.rank import MARK
from hvd_launch.tune.rate import Reader, throughput
from hvd_launch.tune.statistics import gain

OPENMPI4 = Backend("openmpi4", (4, 1, 8), "mpirun", "mpirun")
OPENMPI5 = Backend("openmpi5", (5, 0, 11), "mpirun", "mpirun")
SIZES = [4096, 8192, 16384, 32768]
# Least sizes from 0 up, and what a rule names: None is the library's own decision.
RULES = st.lists(st.integers(1, 2**40), unique=True, max_size=6).flatmap(
    lambda sizes: st.lists(
        st.sampled_from([None, "3 0", "4 0", "5 65536"]),
        min_size=len(sizes) + 1,
        max_size=len(sizes) + 1,
    ).map(lambda rules: list(zip([0, *sorted(sizes)], rules, strict=True)))
)
# As MPICH's own, but shorter.
SELECTION: dict[str, Any] = {
    "collective=bcast": {"algorithm=MPIR_Bcast_intra_binomial": {}},
    "collective=allreduce": {
        "comm_type=intra": {
            "avg_msg_size<=8": {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}},
            "avg_msg_size=any": {"algorithm=MPIR_Allreduce_intra_smp": {}},
        },
        "comm_type=inter": {"algorithm=MPIR_Allreduce_inter_reduce_exchange_bcast": {}},
    },
}


def test_a_gain_is_told_from_luck() -> None:
    before = [10.0, 10.2, 9.9, 10.1, 10.3, 9.8]
    sure = gain(before, [time / 2 for time in before])
    assert sure.gained
    assert sure.low == pytest.approx(2) == sure.high
    assert not gain(before, before[::-1]).gained
    assert not gain([10.0], [1.0]).gained


@pytest.mark.parametrize("pairs", [2, 3, 5, 8, 20])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(pairs: int) -> None:
    source = random.Random(1)
    held = 0
    for _ in range(100):
        after = [math.exp(source.gauss(0, 0.2)) for _ in range(pairs)]
        found = gain([1.2 * math.exp(source.gauss(0, 0.2)) for _ in range(pairs)], after)
        held += found.low <= 1.2 <= found.high
    assert held >= 89


def test_a_journal_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    journal = Journal(path, {"ranks": 2})
    journal.append({"kind": "run", "rate": 1.5})
    with path.open("a") as file:
        file.write('{"kind": "ru')
    again = Journal(path, {"ranks": 2})
    assert again.find(kind="run") == [{"kind": "run", "rate": 1.5}]
    again.append({"kind": "run", "rate": 2.5})
    assert len(Journal(path, {"ranks": 2}).find(kind="run")) == 2


def test_a_journal_of_something_else_is_refused_or_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    Journal(path, {"ranks": 2}).append({"kind": "run"})
    with pytest.raises(UsageError, match=r"ranks 2, not 4: .* -o, .* --fresh"):
        Journal(path, {"ranks": 4})
    assert Journal(path, {"ranks": 4}, fresh=True).entries == []
    assert "run" in (tmp_path / "a.jsonl.1").read_text()
    path.write_text("not JSON\n")
    with pytest.raises(UsageError, match="holds no measurements"):
        Journal(path, {"ranks": 4})
    path.write_text("")
    assert Journal(path, {"ranks": 4}).entries == []


@given(RULES, st.integers(2, 10**6), st.sampled_from([4, 5]))
def test_open_mpis_rules_read_back_as_they_were_meant(rules, size, columns) -> None:
    text = openmpi_rules(rules, size, columns)
    found = read_openmpi_rules(text)
    assert found[size] == [(least, rule or "0 0") for least, rule in rules]
    assert found[size + 1] == [(0, "0 0")]
    assert text.startswith("rule-file-version-2\n") == (columns == 5)


@pytest.mark.parametrize("text", ["", "1\n2\n1\n4\n1\n8 3 0 0\n", "1\n2\n1\n4\n2\n0 3 0 0\n", "x"])
def test_rules_that_open_mpi_would_not_take_are_refused(text: str) -> None:
    with pytest.raises(HvdExtError, match=r"rules of Open MPI's"):
        read_openmpi_rules(text)


@pytest.mark.parametrize(
    ("version", "columns"), [((4, 1, 8), 4), ((5, 0, 3), 4), ((5, 0, 7), 5), ((5, 0, 11), 5)]
)
def test_the_form_of_the_rules_is_the_releases(version, columns, tmp_path: Path) -> None:
    backend = Backend(f"openmpi{version[0]}", version, "mpirun", "mpirun")
    found = library(backend, 2)
    form = ruled(backend, found, ((0, found.base), (65536, "ring")), 8, tmp_path)
    assert form is not None
    assert ("65536 4 0 0 0" in form.text.splitlines()) == (columns == 5)
    variables = {setting.name: setting.value for setting in form.settings}
    assert variables["OMPI_MCA_coll_tuned_use_dynamic_rules"] == "1"
    assert variables["OMPI_MCA_coll_tuned_dynamic_rules_filename"] == str(tmp_path / form.file)
    # On several nodes Open MPI 5 would not ask coll/tuned at all.
    assert variables.get("OMPI_MCA_coll_han_priority") == ("0" if version[0] == 5 else None)


def selected(tree: dict[str, Any], facts: dict[str, Any]) -> str:
    """What MPICH would take: the first condition of each level that holds."""
    for condition, below in tree.items():
        if condition.startswith("algorithm="):
            return condition.removeprefix("algorithm=MPIR_Allreduce_intra_")
        name, _, limit = condition.replace("<=", "=<").partition("=")
        if condition.endswith("=any"):
            holds = True
        elif "<" in condition and "<=" not in condition:
            name, _, limit = condition.partition("<")
            bound = facts["pow2"] if limit == "pow2" else int(limit)
            holds = facts[name] < bound
        elif "<=" in condition:
            holds = facts[name] <= int(limit.removeprefix("<"))
        else:
            holds = facts[name] == limit
        if holds:
            return selected(below, facts)
    raise AssertionError("nothing holds")


def test_mpichs_selection_changes_what_was_meant_and_nothing_else() -> None:
    rules = [(0, None), (4096, "recexch"), (65536, "reduce_scatter_allgather")]
    tree = json.loads(mpich_selection(rules, 6, SELECTION))
    assert tree["collective=bcast"] == SELECTION["collective=bcast"]
    own = SELECTION["collective=allreduce"]
    assert tree["collective=allreduce"]["comm_type=inter"] == own["comm_type=inter"]
    within = tree["collective=allreduce"]["comm_type=intra"]
    sizes = (8, 4095, 4096, 65535, 65536, 2**30)
    for size, ranks, built_in in itertools.product(sizes, (2, 5, 6, 7, 64), ("yes", "no")):
        facts = {"avg_msg_size": size, "comm_size": ranks, "is_op_built_in": built_in}
        facts |= {"count": size // 4, "pow2": 1 << (ranks.bit_length() - 1)}
        ours = ranks == 6 and built_in == "yes" and size >= 4096
        expected = selected(own["comm_type=intra"], facts)
        if ours:
            expected = "recexch" if size < 65536 else "reduce_scatter_allgather"
        assert selected(within, facts) == expected, facts
    # One huge element a message: fewer elements than ranks.
    facts |= {"comm_size": 6, "is_op_built_in": "yes", "count": 1, "pow2": 4}
    assert selected(within, facts) == "smp"


def test_intels_variable_as_its_reference_writes_it() -> None:
    assert intel_rules([(0, None), (4096, "1"), (65536, None), (2**20, "8")], 16) == (
        "1:4096-65535@16-16;8:1048576-2147483647@16-16"
    )
    backend = Backend("intelmpi", (2021, 8, 0), "hydra", "mpirun")
    found = library(backend, 2)
    form = ruled(backend, found, ((0, DEFAULT), (4096, "shumilin_ring")), 16, Path("/nowhere"))
    assert form is not None
    assert {s.name: s.value for s in form.settings} == {
        "I_MPI_ADJUST_ALLREDUCE": "7:4096-2147483647@16-16"
    }


def test_mvapich2_is_forced_for_all_sizes_and_has_no_rules() -> None:
    for name in ("mvapich2", "mvapich2-gdr"):
        backend = Backend(name, (2, 3, 7), "mpirun_rsh", "mpirun_rsh")
        found = library(backend, 2)
        two_levels = found["two_level_recursive_doubling_shared_memory"]
        assert {s.name: s.value for s in two_levels.settings} == {
            "MV2_INTER_ALLREDUCE_TUNING": "1",
            "MV2_INTER_ALLREDUCE_TUNING_TWO_LEVEL": "1",
            "MV2_INTRA_ALLREDUCE_TUNING": "5",
        }
        assert ruled(backend, found, ((0, DEFAULT),), 8, Path("/nowhere")) is None
        assert len(library(backend, 1).candidates) == 3


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    "name", ["openmpi4", "openmpi5", "mpich", "mvapich", "mvapich2", "mvapich2-gdr", "intelmpi"]
)
def test_every_variable_has_its_default_reason_and_source(name: str, nodes: int) -> None:
    found = library(Backend(name, (9, 9, 9), "mpirun", "mpirun"), nodes)
    assert found.candidates[0].settings == ()
    assert found[found.base].name == found.base
    names = [candidate.name for candidate in found.candidates]
    assert len(set(names)) == len(names)
    for candidate in found.candidates:
        assert all(s.default and s.why and s.source for s in candidate.settings)


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
    found = library(OPENMPI4, 1)
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
        plan = choose(times, library(OPENMPI4, 2), mixed)
        assert plan.single == DEFAULT
        assert plan.expected == 1


def test_rules_of_open_mpi_5_on_nodes_are_set_against_its_own_choice_too() -> None:
    found = library(OPENMPI5, 2)
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
    """Jobs on a library whose times are known: us a KiB by coll/tuned's id, "0" its own choice."""

    def __init__(self, us_per_kib: dict[str, float], ruled_us: float | None = None) -> None:
        self.us_per_kib = us_per_kib
        self.ruled_us = ruled_us
        self.ignored: set[str] = set()
        self.noise = random.Random(1)
        self.jobs = 0

    def __call__(self, place, command, settings, timeout_s, read) -> Outcome:
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
            us = self.us_per_kib[taken] * size / 1024
            if len(rules) > 1 and self.ruled_us is not None:
                us = self.ruled_us * size / 1024
            samples = [us * math.exp(self.noise.gauss(0, 0.03)) for _ in range(3)]
            read(MARK + json.dumps({"kind": "time", "message_bytes": size, "us": samples}))
        return Outcome(0, 1.0, ())


def tuned(folder: Path, simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setattr(allreduce.jobs, "run", simulated)
    request = allreduce.Request(Place(OPENMPI4, 8, ()), tuple(SIZES), 4, 4, folder, False)
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
    text = allreduce.settings_text(result.native, result.facts, 8)
    assert f"dynamic_rules_filename={tmp_path / 'openmpi_rules.conf'}" in text
    jobs = simulated.jobs
    assert tuned(tmp_path, simulated, monkeypatch) == result
    assert simulated.jobs == jobs


def test_without_a_gain_nothing_is_written_and_nothing_old_stays(tmp_path, monkeypatch) -> None:
    (tmp_path / "openmpi_rules.conf").write_text("of an earlier run")
    result = tuned(tmp_path, Simulated(SLOW), monkeypatch)
    assert result.native is None
    assert [path.name for path in tmp_path.iterdir()] == ["allreduce.jsonl"]


def test_what_does_not_hold_when_run_again_is_withdrawn(tmp_path, monkeypatch) -> None:
    result = tuned(tmp_path, Simulated({**SLOW, "6": 0.5}, ruled_us=1.0), monkeypatch)
    assert result.native is not None
    assert not result.native.overall.gained
    assert [path.name for path in tmp_path.iterdir()] == ["allreduce.jsonl"]


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
    for wrong, complaint in (("(", "no regular expression"), ("speed", "in a group")):
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


def tune(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hvd_launch", "tune", *arguments]
    root = Path(__file__).resolve().parents[2]
    env = {"PYTHONPATH": f"{root}:{root / 'launch'}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("allreduce -np 1", "at least 2 ranks"),
        ("allreduce -np 0", "at least 1 rank"),
        ("allreduce -np 2 -- true", "runs no command"),
        ("allreduce -np 2 --least 8MiB --most 4MiB", "ascending"),
        ("allreduce -np 2 --least 5KiB --most 6KiB", "no power of two"),
        ("allreduce -np 2 --least many", "'many' is no size"),
        ("allreduce -np 2 --rounds 1", "2 or more"),
        ("allreduce -np 2 --pairs 1", "at least 2"),
        ("allreduce -np 2 -H a;b", "'a;b' is no host"),
        ("allreduce -np 4 -H localhost:2", "2 slots"),
        ("allreduce -np 2 -o file", "is no folder"),
        ("fusion -np 2", "no COMMAND"),
        ("fusion -np 2 --", "no COMMAND"),
        ("fusion -np 2 -- no-such-program", "'no-such-program' is no command"),
        ("fusion -np 2 --trials 3 -- true", "at least 6"),
        ("fusion -np 2 --seconds 0 -- true", "above 0"),
        ("fusion -np 2 --rate speed -- true", "in a group"),
        ("fusion", "-np"),
        ("", "KIND"),
    ],
)
def test_a_request_that_cannot_be_meant(arguments: str, complaint: str, tmp_path: Path) -> None:
    if not (Path(sys.executable).parent / "mpirun").exists():
        pytest.skip("no mpirun beside this Python: the MPI is asked for first")
    (tmp_path / "file").touch()
    done = tune(*arguments.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_help_ends_with_an_example(tmp_path: Path) -> None:
    for kind in ("allreduce", "fusion"):
        last = tune(kind, "--help", cwd=tmp_path).stdout.splitlines()[-1]
        assert last.startswith(f"example: hvd-launch tune {kind} ")
