"""What `hvd-launch tune` writes for each MPI library, read as the library reads it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_launch.backends import intelmpi, mpich, openmpi
from hvd_launch.backends.libraries import LIBRARIES, Backend
from hvd_launch.backends.tuning import DEFAULT
from hvd_launch.tune.allreduce.native_rules import native_rules
from tests.support.launch.openmpi_rules import read_openmpi_rules

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


def intels_choice(text: str, message_bytes: int) -> str:
    """As 2021.19 was seen to read it: the first range that ends above the message, without @."""
    for part in text.split(";"):
        number, _, sizes = part.partition(":")
        assert "@" not in part, "the last range with these ranks would count for all sizes"
        if message_bytes <= int(sizes.partition("-")[2]):
            return number
    raise AssertionError("beyond the last range")


def test_intels_variable_as_the_library_reads_it() -> None:
    rules = [(0, "1"), (4096, "3"), (65536, "1"), (2**20, "8")]
    text = intelmpi.rules_text(rules)
    assert text == "1:0-4095;3:4096-65535;1:65536-1048575;8:1048576-2147483647"
    for size in (0, 4095, 4096, 65535, 65536, 2**20 - 1, 2**20, 2**31 - 1):
        assert intels_choice(text, size) == next(r for least, r in rules[::-1] if least <= size)
    backend = Backend("intelmpi", (2021, 8, 0), "hydra", "mpirun")
    found = backend.library.candidates(2)
    form = native_rules(
        backend, found, ((0, "ring"), (4096, "shumilin_ring")), 16, Path("/nowhere")
    )
    assert form is not None
    assert {s.name: s.value for s in form.settings} == {
        "I_MPI_ADJUST_ALLREDUCE": "8:0-4095;7:4096-2147483647"
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
        names = [candidate.name for candidate in backend.library.candidates(1).all]
        assert names == [
            DEFAULT,
            "recursive_doubling",
            "reduce_scatter_allgather",
            "reduce_scatter_and_allgather_calls",
            "ring",
            "socket_aware",
        ]
        ring = {s.name: s.value for s in found["ring"].settings}
        assert ring == {
            "MV2_INTER_ALLREDUCE_TUNING": "9",
            "MV2_INTER_ALLREDUCE_TUNING_TWO_LEVEL": "0",
        }


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", LIBRARIES)
def test_every_variable_has_its_default_reason_and_source(name: str, nodes: int) -> None:
    found = Backend(name, (9, 9, 9), "mpirun", "mpirun").library.candidates(nodes)
    assert found.all[0].settings == ()
    assert found.base is None or found[found.base].name == found.base
    names = [candidate.name for candidate in found.all]
    assert len(set(names)) == len(names)
    for candidate in found.all:
        assert all(s.default and s.why and s.source for s in candidate.settings)
