"""What `hvd-launch tune allreduce` may ask of an MPI library. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """What is to be measured of an MPI library.

    Attributes:
        all: the library as it is comes first.
        base: the candidate that a message takes for which rules name no algorithm; None: they
            have to name one for every message, whatever the size of its communicator.
        ruled: variables that an algorithm for each message size needs beside its rules.
    """

    all: tuple[Candidate, ...]
    base: str | None = DEFAULT
    ruled: tuple[Setting, ...] = ()

    def __getitem__(self, name: str) -> Candidate:
        return next(candidate for candidate in self.all if candidate.name == name)


@dataclass(frozen=True, slots=True)
class NativeRules:
    """What makes an MPI library take another algorithm for each message size.

    Attributes:
        file: the name of a file that they point to, or None.
        text: what is in it.
    """

    settings: tuple[Setting, ...]
    file: str | None = None
    text: str = ""
