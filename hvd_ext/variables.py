"""Every environment variable that the project reads: its default, effect and parser."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from hvd_ext.errors import UsageError
from hvd_ext.units import parse_bytes

T = TypeVar("T")
# The first steps, which allocate, tune and compile, are not profiled.
SKIPPED_STEPS, LEAST_STEP = 10, 3


@dataclass(frozen=True)
class Variable(Generic[T]):
    """An environment variable.

    Attributes:
        name: its name.
        effect: the value it takes and what that changes, in Markdown, for the table in docs.
        reader: the part of the project that reads it.
        parse: returns its value from the text, or from None if it is not set and has no default;
            raises ValueError with the rule that the text breaks.
        default: the text that counts where it is not set.
        shown: what the table shows for it, if that is neither the text nor "unset".
    """

    name: str
    effect: str
    reader: str
    parse: Callable[[str | None], T]
    default: str | None = None
    shown: str = ""

    def read(self, environ: Mapping[str, str] | None = None) -> T:
        """Return the value in the environment.

        Args:
            environ: the environment; by default this process's.

        Raises:
            UsageError: the value is invalid.
        """
        text = (os.environ if environ is None else environ).get(self.name, self.default)
        try:
            return self.parse(text)
        except ValueError as error:
            raise UsageError(f"{self.name}={text!r}: {error}") from None

    @property
    def is_set(self) -> bool:
        """Whether the environment has the variable."""
        return self.name in os.environ


def _text_or_none(text: str | None) -> str | None:
    return text


def _path_or_none(text: str | None) -> Path | None:
    return Path(text) if text else None


def _seconds(text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ValueError("give a number of seconds above 0")
    return value


def _switch(otherwise: str) -> Callable[[str | None], bool]:
    def parse(text: str | None) -> bool:
        if text not in ("0", "1"):
            raise ValueError(f"give 1, or {otherwise}")
        return text == "1"

    return parse


def _bytes_or_none(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        most = parse_bytes(text)
    except UsageError:
        most = 0
    if most < 1:
        raise ValueError("give a size above 0, such as 4MiB, or unset it")
    return most


def _slots_or_none(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise ValueError("give a number of slots, such as 8, or unset it")
    return int(text)


def _first_and_last(text: str | None) -> tuple[int, int] | None:
    """Return the first and the last step of "FIRST-LAST", or of a number of steps, or None.

    Raises:
        ValueError: the text is neither.
    """
    if not text:
        return None
    found = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})", text)
    first, last = (int(found[1] or 0), int(found[2])) if found else (0, 0)
    if found and not found[1]:
        first, last = SKIPPED_STEPS + 1, SKIPPED_STEPS + last
    if not LEAST_STEP <= first <= last:
        raise ValueError(
            f"give a number of steps, which are recorded after the first {SKIPPED_STEPS}, or the "
            f"first and the last step, such as 20-22, from {LEAST_STEP} on"
        )
    return first, last


def _steps_and_action(text: str | None) -> tuple[int, bool]:
    """Return the steps from one audit to the next, and whether an audit only warns."""
    number, colon, action = (text or "").partition(":")
    if not number.isdecimal() or int(number) < 1 or (colon and action != "warn"):
        raise ValueError(
            "give a number of steps, such as 100, or 100:warn to continue after a difference"
        )
    return int(number), bool(colon)


AUDIT = Variable(
    "HVD_EXT_AUDIT",
    "folder in which every rank writes fingerprints of what it trains with, for `hvprof audit`",
    "hvd_ext.torch",
    _path_or_none,
)
AUDIT_EVERY = Variable(
    "HVD_EXT_AUDIT_EVERY",
    "steps from one audit to the next. Ranks then also compare their parameters, and the job"
    " ends and names a rank whose parameters differ; `100:warn` only warns",
    "hvd_ext.torch",
    _steps_and_action,
    "1",
    shown="unset",
)
BUCKET_BYTES = Variable(
    "HVD_EXT_BUCKET_BYTES",
    "maximum size of a bucket, such as `4 MiB`",
    "hvd_ext.torch",
    _bytes_or_none,
    shown="measured",
)
COMPRESSION = Variable(
    "HVD_EXT_COMPRESSION",
    "format of gradients between nodes, such as bf16, powersgd or auto, for scripts that set no"
    " `compression=`",
    "hvd_ext.torch, hvd_ext.c10d",
    str,
    "none",
)
DEVICE_ARENA = Variable(
    "HVD_EXT_DEVICE_ARENA",
    "1 reduces gradients on GPUs over CUDA IPC, where a check before the first step finds the"
    " right bits; 0 leaves them to Horovod, or to DDP's process group",
    "hvd_ext.torch, hvd_ext.c10d",
    _switch("0 for Horovod's or DDP's own exchange"),
    "1",
)
DEVICE_HALOS = Variable(
    "HVD_EXT_DEVICE_HALOS",
    "1 exchanges halos of tensors on GPUs over CUDA IPC, where a check before the first one finds"
    " the right bits; 0 takes them through the host's memory",
    "hvd_ext.spatial",
    _switch("0 for halos through the host"),
    "1",
)
KEEP_MEMORY = Variable(
    "HVD_EXT_KEEP_MEMORY",
    "1 keeps freed memory in the process; 0 leaves malloc's settings unchanged",
    "hvd_ext.torch, hvd-launch",
    _switch("0 for malloc as it is"),
    "1",
)
KERNELS = Variable(
    "HVD_EXT_KERNELS",
    "vector instructions of sums of 16-bit floats within a node: scalar, avx2 or avx512; the"
    " bits are the same",
    "hvd_ext",
    _text_or_none,
    shown="widest",
)
REPRODUCIBLE = Variable(
    "HVD_EXT_REPRODUCIBLE",
    "number of slots of a step whose bits do not depend on the number of ranks, for scripts"
    " that set no `reproducible=`",
    "hvd_ext.torch",
    _slots_or_none,
)
SHARDED = Variable(
    "HVD_EXT_SHARDED",
    "1 shards the optimizer's update over the ranks of a node, for scripts that set no `sharded=`",
    "hvd_ext.torch",
    _switch("0 to have every rank update all parameters"),
    "0",
)
STALL_TIMEOUT_S = Variable(
    # Long enough for work of a single rank, such as evaluation or writing a checkpoint.
    "HVD_EXT_STALL_TIMEOUT_S",
    "seconds to wait for a late rank before the job ends with the names of missing ranks",
    "hvd_ext",
    _seconds,
    "600",
)
SYNC = Variable(
    "HVD_EXT_SYNC",
    "how often nodes exchange, for scripts that set no `sync=`: every_step, one_step_late,"
    " local_sgd:steps=N or diloco:steps=N",
    "hvd_ext.torch",
    str,
    "every_step",
)
TABLE = Variable(
    "HVD_EXT_TABLE",
    "path of a table of allreduce algorithms (JSON, read by rank 0)",
    "hvd_ext",
    _text_or_none,
    shown="built in",
)
OWN_DEVICE = Variable(
    "HVD_LAUNCH_OWN_DEVICE",
    "number of the GPU that belongs to this rank; set by `hvd-launch exec`",
    "hvd-launch",
    _text_or_none,
)
HVPROF_DIR = Variable(
    "HVPROF_DIR",
    "folder of the recording; set by `hvprof record`",
    "the recorder",
    _text_or_none,
)
HVPROF_TRACE = Variable(
    "HVPROF_TRACE",
    "number of calls that each rank keeps one by one; set by `hvprof record --trace`",
    "the recorder",
    _text_or_none,
    shown="0",
)
HVPROF_GPU = Variable(
    "HVPROF_GPU",
    "first and last step that torch.profiler records on each rank, such as `11-13`; set by "
    "`hvprof record --gpu`",
    "hvd_ext",
    _first_and_last,
)
VARIABLES: tuple[Variable[Any], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Variable)
)
_KNOWN = {variable.name for variable in VARIABLES}
_PREFIXES = ("HVD_EXT_", "HVPROF_", "HVD_LAUNCH_")
# The project's own tests and benchmarks.
_INTERNAL = ("HVD_EXT_TEST_", "HVD_EXT_TESTBED_")


def misspelt(names: Iterable[str]) -> list[str]:
    """Return a line for each name that has a prefix of the project but is not a variable of it.

    Args:
        names: names of environment variables that are set.
    """
    lines = []
    for name in sorted(names):
        if name in _KNOWN or not name.startswith(_PREFIXES) or name.startswith(_INTERNAL):
            continue
        nearest = difflib.get_close_matches(name, sorted(_KNOWN), n=1)
        hint = (
            f"did you mean {nearest[0]}?"
            if nearest
            else "docs/reference/variables.md lists all variables"
        )
        lines.append(f"unknown environment variable {name} has no effect: {hint}")
    return lines


def table() -> str:
    """Return the Markdown table of all variables."""
    rows = [
        f"| `{v.name}` | {v.reader} | {v.shown or v.default or 'unset'} | {v.effect} |"
        for v in sorted(VARIABLES, key=lambda v: v.name)
    ]
    return "\n".join(["| variable | read by | default | effect |", "|---|---|---|---|", *rows])
