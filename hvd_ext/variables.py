"""Every environment variable that the project reads, and names that look like one of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    Attributes:
        name: its name.
        default: its value where it is not set.
        effect: the value it takes and what that changes, in Markdown, for the table in docs.
        reader: the part of the project that reads it.
    """

    name: str
    default: str
    effect: str
    reader: str = "hvd_ext.torch"


VARIABLES = (
    Variable(
        "HVD_EXT_AUDIT",
        "unset",
        "folder in which every rank writes fingerprints of what it trains with, for `hvprof audit`",
    ),
    Variable(
        "HVD_EXT_AUDIT_EVERY",
        "unset",
        "steps from one audit to the next. Ranks then compare their parameters, too, and the job"
        " ends with the name of a rank that holds others; `100:warn` only warns",
    ),
    Variable("HVD_EXT_BUCKET_BYTES", "measured", "maximum size of a bucket, such as `4 MiB`"),
    Variable(
        "HVD_EXT_COMPRESSION",
        "none",
        "format of gradients between nodes, for scripts that set no `compression=`: none, bf16,"
        " fp16, int8, powersgd(RANK) or auto",
        "hvd_ext.torch, hvd_ext.c10d",
    ),
    Variable(
        "HVD_EXT_DEVICE_ARENA",
        "0",
        "1 reduces gradients on GPUs over CUDA IPC (run on one GPU, not on several); 0 leaves them"
        " to Horovod",
    ),
    Variable(
        "HVD_EXT_KEEP_MEMORY",
        "1",
        "1 keeps freed memory in the process; 0 leaves malloc's settings unchanged",
        "hvd_ext.torch, hvd-launch",
    ),
    Variable(
        "HVD_EXT_KERNELS",
        "widest",
        "vector instructions of sums of 16-bit floats within a node: scalar, avx2 or avx512; the"
        " bits are the same",
        "hvd_ext",
    ),
    Variable(
        "HVD_EXT_REPRODUCIBLE",
        "unset",
        "number of slots of a step whose bits do not depend on the number of ranks, for scripts"
        " that set no `reproducible=`",
    ),
    Variable(
        "HVD_EXT_SHARDED",
        "0",
        "1 shards the optimizer's update over the ranks of a node, for scripts that set no"
        " `sharded=`",
    ),
    Variable(
        "HVD_EXT_STALL_TIMEOUT_S",
        "600",
        "seconds to wait for a late rank before the job ends with the names of missing ranks",
        "hvd_ext",
    ),
    Variable(
        "HVD_EXT_SYNC",
        "every_step",
        "how often nodes exchange, for scripts that set no `sync=`: every_step, one_step_late,"
        " local_sgd:steps=N or diloco:steps=N",
    ),
    Variable(
        "HVD_EXT_TABLE",
        "built in",
        "path of a table of allreduce algorithms (JSON, read by rank 0)",
        "hvd_ext",
    ),
    Variable(
        "HVD_LAUNCH_OWN_DEVICE",
        "unset",
        "number of the GPU that belongs to this rank; set by `hvd-launch exec`",
        "hvd-launch",
    ),
    Variable(
        "HVPROF_DIR", "unset", "folder of the recording; set by `hvprof record`", "the recorder"
    ),
    Variable(
        "HVPROF_TRACE",
        "0",
        "number of calls that each rank keeps one by one; set by `hvprof record --trace`",
        "the recorder",
    ),
)
_PAGE = "docs/reference/variables.md"
_KNOWN = {variable.name for variable in VARIABLES}
_PREFIXES = ("HVD_EXT_", "HVPROF_", "HVD_LAUNCH_")
# The project's own tests and benchmarks.
_INTERNAL = ("HVD_EXT_TEST_", "HVD_EXT_TESTBED_")


def misspelt(names: Iterable[str]) -> list[str]:
    """A line for each name that has a prefix of the project and is no variable of it.

    Args:
        names: of environment variables that are set.
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
    """The Markdown table of all variables."""
    rows = [
        f"| `{v.name}` | {v.reader} | {v.default} | {v.effect} |"
        for v in sorted(VARIABLES, key=lambda v: v.name)
    ]
    return "\n".join(["| variable | read by | default | effect |", "|---|---|---|---|", *rows])
