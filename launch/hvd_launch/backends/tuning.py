"""Interface of an MPI library for `hvd-launch tune allreduce`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_launch.settings import Setting

# The name of the library's default.
DEFAULT = "default"
# Pairs of least message_bytes and rule, ascending from 0; None: no rule, the library's choice.
Rules = Sequence[tuple[int, str | None]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm for every allreduce.

    Attributes:
        name: its name in reports.
        settings: the variables that force it.
        rule: its name in a file of rules; None if no rule can name it.
    """

    name: str
    settings: tuple[Setting, ...]
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates to measure for an MPI library.

    Attributes:
        all: all candidates; the first is the library's default.
        base: the candidate for messages for which rules name no algorithm; None if rules must name
            one for every message and every communicator.
        ruled: variables that rules by message size need in addition.
    """

    all: tuple[Candidate, ...]
    base: str | None = DEFAULT
    ruled: tuple[Setting, ...] = ()

    def __getitem__(self, name: str) -> Candidate:
        return next(candidate for candidate in self.all if candidate.name == name)


@dataclass(frozen=True, slots=True)
class RuleRequest:
    """The rules by message size for an MPI library.

    Attributes:
        version: the library's version.
        rules: pairs of least message_bytes and algorithm.
        size: number of ranks for which they are valid.
        folder: folder of the file, which variables name.
        selection: the library's built-in choices, from `MpiLibrary.built_in_selection`.
    """

    version: tuple[int, ...]
    rules: Rules
    size: int
    folder: Path
    selection: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NativeRules:
    """Settings that make an MPI library choose the algorithm by message size.

    Attributes:
        file: the name of a file that they point to, or None.
        text: its content.
    """

    settings: tuple[Setting, ...]
    file: str | None = None
    text: str = ""
