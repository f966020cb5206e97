"""`hvd-launch tune` apart from any job: choosing, writing, reading, and how sure it is."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.errors import HvdExtError, UsageError
from hvd_launch.backends import intelmpi, mpich, openmpi
from hvd_launch.backends.libraries import Backend
from hvd_launch.backends.tuning import DEFAULT
from hvd_launch.tune.allreduce import tuning as allreduce
from hvd_launch.tune.allreduce.choice import choose, hopeless
from hvd_launch.tune.allreduce.native_rules import native_rules
from hvd_launch.tune.allreduce.rank import MARK
from hvd_launch.tune.allreduce.result import Result, settings_text
from hvd_launch.tune.common.jobs import Outcome
from hvd_launch.tune.common.journal import Journal
from hvd_launch.tune.common.target import Target

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


def test_a_journal_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    journal = Journal(path, {"ranks": 2})
    journal.append({"kind": "run", "rate": 1.5, "by_wall_time": False})
    with path.open("a") as file:
        file.write('{"kind": "ru')
    again = Journal(path, {"ranks": 2})
    assert [entry["rate"] for entry in again.find(kind="run")] == [1.5]
    again.append({"kind": "run", "rate": 2.5, "by_wall_time": False})
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


TIME = {"kind": "time", "candidate": "ring", "round": 0, "attempt": 0, "message_bytes": 8}


@pytest.mark.parametrize(
    "line",
    ["[]", "5", "{}", '{"subject": 5}', "[" * 100_000, '{"kind": []}', '{"kind": "job"}']
    + ['{"kind": "run", "rate": 0, "by_wall_time": false}', '{"kind": "facts", "phase": "facts"}']
    + [json.dumps({**TIME, "us": us}) for us in ([], [0.0], [1, "a"], 5, [None], [math.nan])],
)
def test_a_journal_that_holds_something_else_is_one_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text in (f"{line}\n", f'{{"subject": {{}}}}\n{line}\n'):
        path.write_text(text)
        with pytest.raises(UsageError, match="move it away"):
            Journal(path, {})
        assert path.read_text() == text


def read_openmpi_rules(text: str) -> dict[int, list[tuple[int, str]]]:
    """Rules by communicator size, as coll/tuned reads them: numbers, and # to the line's end."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    columns = 5 if lines[:1] == ["rule-file-version-2"] else 4
    try:
        numbers = list(map(int, " ".join(lines[columns == 5 :]).split()))
        collectives, collective, sizes = (numbers.pop(0) for _ in range(3))
        found = {}
        for _ in range(sizes):
            size, count = numbers.pop(0), numbers.pop(0)
            rules = [tuple(numbers.pop(0) for _ in range(columns)) for _ in range(count)]
            found[size] = [(rule[0], f"{rule[1]} {rule[3]}") for rule in rules]
    except (ValueError, IndexError) as error:
        raise ValueError(f"no rules of Open MPI's: {error}") from error
    starts = [[least for least, _ in rules] for rules in found.values()]
    if numbers or (collectives, collective) != (1, 2) or list(found) != sorted(found):
        raise ValueError("no rules of Open MPI's for allreduce alone, by ascending size")
    if any(start[:1] != [0] or start != sorted(set(start)) for start in starts):
        raise ValueError("rules of Open MPI's must begin at 0 bytes and ascend")
    return found


@given(RULES, st.integers(2, 10**6), st.sampled_from([4, 5]))
def test_open_mpis_rules_read_back_as_they_were_meant(rules, size, columns) -> None:
    text = openmpi.rules_text(rules, size, columns)
    found = read_openmpi_rules(text)
    assert found[size] == [(least, rule or "0 0") for least, rule in rules]
    assert found[size + 1] == [(0, "0 0")]
    assert text.startswith("rule-file-version-2\n") == (columns == 5)


@pytest.mark.parametrize("text", ["", "1\n2\n1\n4\n1\n8 3 0 0\n", "1\n2\n1\n4\n2\n0 3 0 0\n", "x"])
def test_rules_that_open_mpi_would_not_take_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"rules of Open MPI's"):
        read_openmpi_rules(text)


@pytest.mark.parametrize(
    ("version", "columns"), [((4, 1, 8), 4), ((5, 0, 3), 4), ((5, 0, 7), 5), ((5, 0, 11), 5)]
)
def test_the_form_of_the_rules_is_the_releases(version, columns, tmp_path: Path) -> None:
    backend = Backend(f"openmpi{version[0]}", version, "mpirun", "mpirun")
    found = backend.library.candidates(2)
    form = native_rules(backend, found, ((0, found.base), (65536, "ring")), 8, tmp_path)
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
    tree = json.loads(mpich.selection_text(rules, 6, SELECTION))
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
    assert intelmpi.rules_text([(0, None), (4096, "1"), (65536, None), (2**20, "8")], 16) == (
        "1:4096-65535@16-16;8:1048576-2147483647@16-16"
    )
    backend = Backend("intelmpi", (2021, 8, 0), "hydra", "mpirun")
    found = backend.library.candidates(2)
    form = native_rules(
        backend, found, ((0, DEFAULT), (4096, "shumilin_ring")), 16, Path("/nowhere")
    )
    assert form is not None
    assert {s.name: s.value for s in form.settings} == {
        "I_MPI_ADJUST_ALLREDUCE": "7:4096-2147483647@16-16"
    }


def test_mvapich2_is_forced_for_all_sizes_and_has_no_rules() -> None:
    for name in ("mvapich2", "mvapich2-gdr"):
        backend = Backend(name, (2, 3, 7), "mpirun_rsh", "mpirun_rsh")
        found = backend.library.candidates(2)
        two_levels = found["two_level_recursive_doubling_shared_memory"]
        assert {s.name: s.value for s in two_levels.settings} == {
            "MV2_INTER_ALLREDUCE_TUNING": "1",
            "MV2_INTER_ALLREDUCE_TUNING_TWO_LEVEL": "1",
            "MV2_INTRA_ALLREDUCE_TUNING": "5",
        }
        assert native_rules(backend, found, ((0, DEFAULT),), 8, Path("/nowhere")) is None
        assert len(backend.library.candidates(1).all) == 3


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    "name", ["openmpi4", "openmpi5", "mpich", "mvapich", "mvapich2", "mvapich2-gdr", "intelmpi"]
)
def test_every_variable_has_its_default_reason_and_source(name: str, nodes: int) -> None:
    found = Backend(name, (9, 9, 9), "mpirun", "mpirun").library.candidates(nodes)
    assert found.all[0].settings == ()
    assert found[found.base].name == found.base
    names = [candidate.name for candidate in found.all]
    assert len(set(names)) == len(names)
    for candidate in found.all:
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
    """Jobs on a library whose times are known: us a KiB by coll/tuned's id, "0" its own choice."""

    def __init__(self, us_per_kib: dict[str, float], ruled_us: float | None = None) -> None:
        self.us_per_kib = us_per_kib
        self.ruled_us = ruled_us
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
            us = self.us_per_kib[taken] * size / 1024
            if len(rules) > 1 and self.ruled_us is not None:
                us = self.ruled_us * size / 1024
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
