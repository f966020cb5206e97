"""Choices by message size in the MPI library's own form. Pure.

Rules are valid for one number of ranks: a communicator of another size is served as before, if the
library's form can express that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvd_launch.backends.libraries import LIBRARIES, Backend
from hvd_launch.backends.tuning import Candidates, NativeRules, RuleRequest

FILES = tuple({lib.rules_file: None for lib in LIBRARIES.values() if lib.rules_file})
# Pairs of least message_bytes and candidate, ascending from 0.
Choices = Sequence[tuple[int, str]]


def native_rules(
    backend: Backend,
    candidates: Candidates,
    choices: Choices,
    size: int,
    folder: Path,
    selection: Mapping[str, Any] | None = None,
) -> NativeRules | None:
    """Return the native form of choices that differ by size; None if a library has none.

    Args:
        backend: the library.
        candidates: those that `choices` names.
        choices: the choices for the library; its base candidate needs no rule.
        size: number of ranks for which they are valid.
        folder: folder of the file, which variables name.
        selection: the library's built-in choices, as `rank.py` reads them.
    """
    rules = [
        (least, None if name == candidates.base else candidates[name].rule)
        for least, name in choices
    ]
    request = RuleRequest(backend.version, rules, size, folder, selection)
    found = backend.library.native_rules(request)
    return found and replace(found, settings=(*candidates.ruled, *found.settings))
