"""Choices by message size in the MPI library's own form. Pure.

Rules hold for one number of ranks: a communicator of another size is served as before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_launch.backends.libraries import Backend
from hvd_launch.settings import Setting
from hvd_launch.tune.allreduce.candidates import Library

FILES = ("openmpi_rules.conf", "mpich_selection.json")
# From which message_bytes on which candidate, ascending from 0.
Choices = Sequence[tuple[int, str]]
# The first release of Open MPI 5 whose rules have a fifth column.
_FIVE_COLUMNS = (5, 0, 7)
_ALLREDUCE = 2  # coll/tuned's id of the collective
_RULES = "ompi/mca/coll/base/coll_base_dynamic_file.c; coll_tuned_decision_dynamic.c"
_CSEL = "mpivars (MPICH's list of control variables); MPICH, src/mpi/coll/src/csel.c"
# What MPICH's selection file has to say of these; without it they fail.
_MPICH_PARAMETERS: dict[str, dict[str, Any]] = {
    "recexch": {"k=2": {"single_phase_recv=no": {}}},
    "k_reduce_scatter_allgather": {"k=2": {"single_phase_recv=no": {}}},
    "recursive_multiplying": {"k=2": {}},
}


@dataclass(frozen=True, slots=True)
class NativeForm:
    """What makes an MPI library follow the choices.

    Attributes:
        settings: variables.
        file: the name of a file that they point to, or None.
        text: what is in it.
    """

    settings: tuple[Setting, ...]
    file: str | None = None
    text: str = ""


def ruled(
    backend: Backend,
    library: Library,
    choices: Choices,
    size: int,
    folder: Path,
    selection: Mapping[str, Any] | None = None,
) -> NativeForm | None:
    """The native form of choices that differ by size; None where a library has none.

    Args:
        backend: whose form.
        library: the candidates that `choices` names.
        choices: what the library is to do; its base candidate needs no rule.
        size: number of ranks that they hold for.
        folder: where the file will be; variables name it there.
        selection: MPICH's built-in tree, as `rank.py` reads it.
    """
    rules = [
        (least, None if name == library.base else library[name].rule) for least, name in choices
    ]
    if backend.name in ("openmpi4", "openmpi5"):
        columns = 5 if backend.version >= _FIVE_COLUMNS else 4
        text = openmpi_rules(rules, size, columns)
        place = "OMPI_MCA_coll_tuned_dynamic_rules_filename"
        forced = ("OMPI_MCA_coll_tuned_allreduce_algorithm", "0")
        return _with_file(library, FILES[0], text, place, forced, folder)
    if backend.name in ("mpich", "mvapich") and selection is not None:
        text = mpich_selection(rules, size, selection)
        place = "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE"
        forced = ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "auto")
        return _with_file(library, FILES[1], text, place, forced, folder)
    if backend.name == "intelmpi":
        why = "allreduce by message size, measured"
        reference = "Intel MPI Library Developer Reference, I_MPI_ADJUST Family"
        value = intel_rules(rules, size)
        return NativeForm((Setting("I_MPI_ADJUST_ALLREDUCE", value, "by a table", why, reference),))
    return None


def openmpi_rules(rules: Sequence[tuple[int, str | None]], size: int, columns: int) -> str:
    """coll/tuned's file of rules; `columns` a rule: 4, or 5 in its version 2.

    Algorithm 0 is coll/tuned's own decision. A communicator takes the rules of the nearest
    lower size, so that those of size + 1 take `size`'s away from larger ones.
    """
    tail = " 0" if columns == 5 else ""
    lines = ["rule-file-version-2"] if columns == 5 else []
    lines += [
        "1 # collective",
        f"{_ALLREDUCE} # allreduce",
        "2 # communicator sizes",
        f"{size} # ranks",
        f"{len(rules)} # message sizes: bytes, algorithm, fan-out, segment bytes"
        + (", requests" if tail else ""),
    ]
    for least, rule in rules:
        algorithm, segment = (rule or "0 0").split()
        lines.append(f"{least} {algorithm} 0 {segment}{tail}")
    lines += [f"{size + 1} # ranks and more", "1 # message size", f"0 0 0 0{tail}"]
    return "\n".join(lines) + "\n"


def mpich_selection(
    rules: Sequence[tuple[int, str | None]], size: int, selection: Mapping[str, Any]
) -> str:
    """MPICH's whole selection, with the rules for allreduce put in.

    Its own choice stays for other sizes of communicators, for operations that a program
    made (they need not be commutative), and for fewer elements than ranks.
    """
    own = selection["collective=allreduce"]
    within = own["comm_type=intra"]
    by_bytes = {}
    for (_, rule), (above, _) in zip(rules, [*rules[1:], (0, None)], strict=True):
        condition = f"avg_msg_size<{above}" if above else "avg_msg_size=any"
        by_bytes[condition] = within if rule is None else _mpich_leaf(rule)
    ours = {
        "is_op_built_in=yes": {"count<pow2": within, "count=any": by_bytes},
        "is_op_built_in=no": within,
    }
    by_ranks = {f"comm_size<{size}": within, f"comm_size<={size}": ours, "comm_size=any": within}
    changed = {**own, "comm_type=intra": by_ranks}
    return json.dumps({**selection, "collective=allreduce": changed}) + "\n"


def intel_rules(rules: Sequence[tuple[int, str | None]], size: int) -> str:
    """I_MPI_ADJUST_ALLREDUCE: ID:LEAST-MOST@RANKS, separated by semicolons."""
    parts = []
    for (least, rule), (above, _) in zip(rules, [*rules[1:], (2**31, None)], strict=True):
        if rule is not None:
            parts.append(f"{rule}:{least}-{above - 1}@{size}-{size}")
    return ";".join(parts)


def _mpich_leaf(rule: str) -> dict[str, Any]:
    return {f"algorithm=MPIR_Allreduce_intra_{rule}": _MPICH_PARAMETERS.get(rule, {})}


def _with_file(
    library: Library, name: str, text: str, place: str, forced: tuple[str, str], folder: Path
) -> NativeForm:
    source = _RULES if place.startswith("OMPI") else _CSEL
    settings = (
        *library.ruled,
        # Whoever has one algorithm forced would have the file ignored.
        Setting(*forced, forced[1], "none is forced: the file decides", source),
        Setting(place, str(folder / name), "none", "which message takes which", source),
    )
    return NativeForm(settings, name, text)
