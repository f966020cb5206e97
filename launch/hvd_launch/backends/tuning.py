"""Interface of an MPI library for `hvd-launch tune allreduce`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_launch.settings import Setting

# The library left as it is.
DEFAULT = "default"
# From which message_bytes on which rule, ascending from 0; None: no rule, the library's choice.
Rules = Sequence[tuple[int, str | None]]


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
class Candidates:
    """Candidates to measure for an MPI library.

    Attributes:
        all: the library as it is comes first.
        base: the candidate that a message takes for which rules name no algorithm; None: they
            have to name one for every message, whatever the size of its communicator.
        ruled: variables that an algorithm for each message size needs in addition to its rules.
    """

    all: tuple[Candidate, ...]
    base: str | None = DEFAULT
    ruled: tuple[Setting, ...] = ()

    def __getitem__(self, name: str) -> Candidate:
        return next(candidate for candidate in self.all if candidate.name == name)


@dataclass(frozen=True, slots=True)
class RuleRequest:
    """The rules by message size that an MPI library is to follow.

    Attributes:
        version: of the library.
        rules: from which message_bytes on which algorithm.
        size: number of ranks that they hold for.
        folder: where the file will be; variables name it there.
        selection: the library's built-in choices, of `MpiLibrary.built_in_selection`.
    """

    version: tuple[int, ...]
    rules: Rules
    size: int
    folder: Path
    selection: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NativeRules:
    """Settings with which an MPI library takes another algorithm for each message size.

    Attributes:
        file: the name of a file that they point to, or None.
        text: what is in it.
    """

    settings: tuple[Setting, ...]
    file: str | None = None
    text: str = ""
