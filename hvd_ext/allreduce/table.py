"""Message size -> algorithm: pure, editable, explains itself.

A table is a list of rows, each for one situation: how many nodes take part, how
many ranks a node has, where the buffer lies. In a row, message sizes ascend, and a
message takes the algorithm of the nearest lower size.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from hvd_ext.errors import UsageError
from hvd_ext.units import format_bytes

ALGORITHMS = ("native", "ring", "recursive_doubling", "hierarchical")
MEMORY_KINDS = ("host", "arena")


@dataclass(frozen=True, slots=True)
class Row:
    """Choices for one situation.

    Attributes:
        nodes, ranks_per_node: the largest situation the row speaks for; 0 = any.
        memory: "arena" for buckets in the node-shared window, "host" for any other array.
        choices: (least message_bytes, algorithm), ascending from 0.
    """

    nodes: int
    ranks_per_node: int
    memory: str
    choices: tuple[tuple[int, str], ...]

    def matches(self, nodes: int, ranks_per_node: int, memory: str) -> bool:
        """Whether the row speaks for this situation."""
        return (
            self.memory == memory
            and self.nodes in (0, nodes)
            and self.ranks_per_node in (0, ranks_per_node)
        )


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, the first that matches counts; `source` says where they come from."""

    rows: tuple[Row, ...]
    source: str

    def choose(self, nodes: int, ranks_per_node: int, memory: str, message_bytes: int) -> str:
        """Name the algorithm for a message of `message_bytes` per rank."""
        for row in self.rows:
            if row.matches(nodes, ranks_per_node, memory):
                return row.choices[bisect_right(row.choices, (message_bytes, "~")) - 1][1]
        return "native"

    def explain(self, nodes: int, ranks_per_node: int, memory: str, message_bytes: int) -> str:
        """Say which algorithm a message takes, and why."""
        choice = self.choose(nodes, ranks_per_node, memory, message_bytes)
        for number, row in enumerate(self.rows):
            if row.matches(nodes, ranks_per_node, memory):
                limit = max(least for least, _ in row.choices if least <= message_bytes)
                return (
                    f"{format_bytes(message_bytes)} takes {choice}: row {number} of {self.source} "
                    f"({row.nodes or 'any'} nodes, {row.ranks_per_node or 'any'} ranks per node, "
                    f"{memory}) says so from {format_bytes(limit)} up"
                )
        return f"{format_bytes(message_bytes)} takes native: no row of {self.source} matches"


# Measured on one machine of two cores with Open MPI 4.1.8, and kept on the careful
# side: in the arena the node's own exchange wins at every size a bucket has; between
# nodes the library's allreduce is left early only for the long messages on which a
# ring cannot lose.
BUILT_IN = Table(
    (
        Row(0, 0, "arena", ((0, "hierarchical"),)),
        Row(0, 0, "host", ((0, "native"), (1 << 20, "ring"))),
    ),
    "the built-in table",
)


def load(path: Path) -> Table:
    """Read a table from JSON.

    The file holds {"version": 1, "rows": [{"nodes", "ranks_per_node", "memory",
    "choices": [[least_bytes, algorithm], ...]}, ...]}.

    Raises:
        UsageError: names the file, the row and the rule that it breaks.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"table {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"table {path}: not JSON: {error}") from None
    if not isinstance(document, Mapping) or document.get("version") != 1:
        raise UsageError(f'table {path}: the top level must be an object with "version": 1')
    rows = document.get("rows")
    if not isinstance(rows, list):
        raise UsageError(f'table {path}: "rows" must be a list')
    return Table(
        tuple(_row(row, f"table {path}, row {n}") for n, row in enumerate(rows)), str(path)
    )


def _row(row: Any, where: str) -> Row:
    if not isinstance(row, Mapping):
        raise UsageError(f"{where}: must be an object")
    nodes, ranks_per_node = row.get("nodes"), row.get("ranks_per_node")
    if not (_is_count(nodes) and _is_count(ranks_per_node)):
        raise UsageError(f"{where}: nodes and ranks_per_node must be whole numbers, 0 for any")
    if row.get("memory") not in MEMORY_KINDS:
        raise UsageError(f"{where}: memory {row.get('memory')!r} must be one of {MEMORY_KINDS}")
    choices = row.get("choices")
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise UsageError(f"{where}: choices must be a list of [least_bytes, algorithm]")
    return Row(nodes, ranks_per_node, row["memory"], tuple(_choices(choices, where)))


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _choices(choices: Sequence[Any], where: str) -> list[tuple[int, str]]:
    parsed: list[tuple[int, str]] = []
    for number, choice in enumerate(choices):
        here = f"{where}, choice {number}"
        if not isinstance(choice, Sequence) or len(choice) != 2 or type(choice[0]) is not int:
            raise UsageError(f"{here}: {choice!r} must be [least_bytes, algorithm]")
        least, algorithm = choice
        if algorithm not in ALGORITHMS:
            raise UsageError(f"{here}: {algorithm!r} is no algorithm: use one of {ALGORITHMS}")
        if least < 0 or (number == 0 and least != 0) or (parsed and least <= parsed[-1][0]):
            raise UsageError(f"{here}: sizes must start at 0 and ascend, not {least}")
        parsed.append((least, algorithm))
    return parsed
