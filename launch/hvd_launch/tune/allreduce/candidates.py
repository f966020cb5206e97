"""Each MPI library's own allreduce algorithms, and the variables that force them. Pure.

Only Open MPI 4.1 and 5.0 and MPICH 5.0 were run; the others' variables are from what
their `source` names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hvd_launch.backends.libraries import Backend
from hvd_launch.settings import Setting

DEFAULT = "default"
_TUNED = "ompi_info --param coll tuned --level 9"
_HAN = "ompi_info --param coll han --level 9"
_CVAR = "mpivars (MPICH's list of control variables)"
_MV2 = "MVAPICH2 2.3.7, allreduce_tuning.h and allreduce_tuning.c"
_INTEL = "Intel MPI Library Developer Reference, I_MPI_ADJUST Family"
# coll/tuned's ids of algorithms (7, allgather_reduce, came after 5.0).
_OPENMPI = {
    "linear": "1 0",
    "nonoverlapping": "2 0",
    "recursive_doubling": "3 0",
    "ring": "4 0",
    "segmented_ring_64KiB": "5 65536",
    "segmented_ring_1MiB": "5 1048576",
    "rabenseifner": "6 0",
}
# The names that MPICH's control variable and its selection file share.
_MPICH = (
    "recursive_doubling",
    "reduce_scatter_allgather",
    "recexch",
    "ring",
    "k_reduce_scatter_allgather",
    "recursive_multiplying",
)
# (inter, intra, two levels) by name.
_MVAPICH2 = {
    "recursive_doubling": ("1", None),
    "reduce_scatter_allgather": ("2", None),
    "two_level_recursive_doubling_shared_memory": ("1", "5"),
    "two_level_recursive_doubling_point_to_point": ("1", "6"),
    "two_level_reduce_scatter_allgather_shared_memory": ("2", "5"),
    "two_level_reduce_scatter_allgather_point_to_point": ("2", "6"),
}
_INTEL_IDS = {
    "recursive_doubling": "1",
    "rabenseifner": "2",
    "reduce_bcast": "3",
    "topology_aware_reduce_bcast": "4",
    "binomial_gather_scatter": "5",
    "topology_aware_binomial_gather_scatter": "6",
    "shumilin_ring": "7",
    "ring": "8",
    "knomial": "9",
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to have every allreduce done.

    Attributes:
        name: as reports show it.
        settings: the variables that force it.
        rule: what a file of rules calls it; None: no rule can.
    """

    name: str
    settings: tuple[Setting, ...]
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Library:
    """What is to be measured of an MPI library.

    Attributes:
        candidates: the library as it is first.
        base: the candidate that a message takes for which rules name no algorithm.
        ruled: variables that an algorithm for each message size needs beside its rules.
    """

    candidates: tuple[Candidate, ...]
    base: str = DEFAULT
    ruled: tuple[Setting, ...] = ()

    def __getitem__(self, name: str) -> Candidate:
        """The candidate of that name."""
        return next(candidate for candidate in self.candidates if candidate.name == name)


def library(backend: Backend, nodes: int) -> Library:
    """What can be forced in this backend's library on so many nodes."""
    family = {
        "openmpi4": _openmpi4,
        "openmpi5": _openmpi5,
        "mpich": _mpich,
        "mvapich": _mpich,
        "mvapich2": _mvapich2,
        "mvapich2-gdr": _mvapich2,
        "intelmpi": _intel,
    }[backend.name]
    return family(nodes)


def _openmpi4(nodes: int) -> Library:
    """coll/tuned decides; coll/han (two levels) stands back, with a priority of 0."""
    ruled = (_dynamic_rules(),)
    two_levels = Setting(
        "OMPI_MCA_coll_han_priority", "40", "0", "allreduce within nodes, then between them", _HAN
    )
    longer = Setting(
        "OMPI_MCA_coll_han_allreduce_segsize", str(2**20), "65536", "its segments", _HAN
    )
    han = [Candidate("han", (two_levels,)), Candidate("han_1MiB", (two_levels, longer))]
    levels = han if nodes > 1 else []
    return Library((Candidate(DEFAULT, ()), *levels, *_openmpi(ruled)), DEFAULT, ruled)


def _openmpi5(nodes: int) -> Library:
    """On several nodes coll/han (35) outranks coll/tuned (30), whose rules are then unused."""
    if nodes == 1:
        ruled: tuple[Setting, ...] = (_dynamic_rules(),)
        return Library((Candidate(DEFAULT, ()), *_openmpi(ruled)), DEFAULT, ruled)
    no_han = Setting(
        "OMPI_MCA_coll_han_priority", "0", "35", "lets coll/tuned decide on several nodes", _HAN
    )
    ruled = (no_han, _dynamic_rules())
    candidates = (Candidate(DEFAULT, ()), Candidate("tuned", (no_han,)), *_openmpi(ruled))
    return Library(candidates, "tuned", ruled)


def _dynamic_rules() -> Setting:
    return Setting(
        "OMPI_MCA_coll_tuned_use_dynamic_rules", "1", "0", "coll/tuned takes rules", _TUNED
    )


def _openmpi(ruled: tuple[Setting, ...]) -> Iterable[Candidate]:
    prefix = "OMPI_MCA_coll_tuned_allreduce_algorithm"
    for name, rule in _OPENMPI.items():
        number, segment = rule.split()
        forced = [Setting(prefix, number, "0", f"allreduce by {name}", _TUNED)]
        if segment != "0":
            forced.append(Setting(f"{prefix}_segmentsize", segment, "0", "its segments", _TUNED))
        yield Candidate(name, (*ruled, *forced), rule)


def _mpich(nodes: int) -> Library:
    """The device's own compositions come first; an algorithm is taken only without them."""
    ruled = (
        Setting(
            "MPIR_CVAR_DEVICE_COLLECTIVES",
            "percoll",
            "all",
            "the next variable decides whether the device does allreduce",
            _CVAR,
        ),
        Setting("MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE", "0", "1", "MPICH's algorithms do", _CVAR),
    )
    names = (*_MPICH, "smp") if nodes > 1 else _MPICH
    variable = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
    forced = (
        Candidate(
            name, (*ruled, Setting(variable, name, "auto", f"allreduce by {name}", _CVAR)), name
        )
        for name in names
    )
    candidates = (Candidate(DEFAULT, ()), Candidate("device_off", ruled), *forced)
    return Library(candidates, "device_off", ruled)


def _mvapich2(nodes: int) -> Library:
    """One algorithm for all sizes.

    MVAPICH2 does read a list of sizes, but then leaves the choice of two levels to chance
    (MV2_internode_Allreduce_is_define), so that no rules are made for it.
    """
    candidates = [Candidate(DEFAULT, ())]
    for name, (inter, intra) in _MVAPICH2.items():
        settings = [
            Setting(
                "MV2_INTER_ALLREDUCE_TUNING", inter, "by a table", f"allreduce by {name}", _MV2
            ),
            Setting(
                "MV2_INTER_ALLREDUCE_TUNING_TWO_LEVEL",
                "1" if intra else "0",
                "by a table",
                "first within the nodes" if intra else "all ranks alike",
                _MV2,
            ),
        ]
        if intra:
            settings.append(
                Setting("MV2_INTRA_ALLREDUCE_TUNING", intra, "by a table", "within a node", _MV2)
            )
        if nodes > 1 or not intra:
            candidates.append(Candidate(name, tuple(settings)))
    return Library(tuple(candidates))


def _intel(nodes: int) -> Library:
    variable = "I_MPI_ADJUST_ALLREDUCE"
    forced = (
        Candidate(
            name,
            (Setting(variable, number, "by a table", f"allreduce by {name}", _INTEL),),
            number,
        )
        for name, number in _INTEL_IDS.items()
        if nodes > 1 or not name.startswith("topology")
    )
    return Library((Candidate(DEFAULT, ()), *forced))
