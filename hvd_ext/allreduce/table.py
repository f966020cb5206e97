"""Message size -> algorithm: pure, editable, explains itself.

A table is a list of rows, each for one situation: the number of nodes, the ranks of a node, the
memory of the buffer, the class of its elements. In a row, message sizes ascend, and a message takes
the algorithm of the nearest lower size.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from hvd_ext.allreduce.algorithms import ALGORITHMS, NATIVE, SHARED_MEMORY
from hvd_ext.allreduce.carrier_names import CARRIERS
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError
from hvd_ext.units import format_bytes, format_seconds, plural

# The algorithms that a row may choose.
CHOICES = (*ALGORITHMS, SHARED_MEMORY)
MEMORY_KINDS = ("host", "arena", "device")
ANY_DTYPE = "any"
_CLASSES = (*dict.fromkeys(dtype.dtype_class for dtype in DTYPES.values()), ANY_DTYPE)
# Fields that say where a row comes from.
_TEXTS = {"simulated": "the platform", "library": "what the MPI library says of itself"}

Choices = tuple[tuple[int, str], ...]
# Median of each algorithm in us, at one message size: (message_bytes, {algorithm: us}).
MeasuredUs = tuple[tuple[int, Mapping[str, float]], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Choices for one situation.

    Attributes:
        nodes, ranks_per_node: numbers that the row is for; 0 matches any.
        memory: "arena" for the node-shared window, "device" for gradients on GPUs, "host" for any
            other array.
        choices: (least message_bytes, algorithm), ascending from 0; carriers on a device.
        dtype_class: class of its elements: "float", "half", "integer", or "any".
        measured_us: the medians behind the choices, ascending; only `explain` reads them.
        simulated: the platform on which these times were simulated; "" if they were measured.
        library: what the MPI library says of itself that took device memory in a job; only under
            it "mpi" counts.
    """

    nodes: int
    ranks_per_node: int
    memory: str
    choices: Choices
    dtype_class: str = ANY_DTYPE
    measured_us: MeasuredUs = ()
    simulated: str = ""
    library: str = ""

    def matches(self, nodes: int, ranks_per_node: int, memory: str, dtype_class: str) -> bool:
        return (
            self.memory == memory
            and self.nodes in (0, nodes)
            and self.ranks_per_node in (0, ranks_per_node)
            and self.dtype_class in (ANY_DTYPE, dtype_class)
        )

    def describe(self) -> str:
        nodes = f"{self.nodes or 'any'} {plural(self.nodes, 'node')}"
        ranks = f"{self.ranks_per_node or 'any'} {plural(self.ranks_per_node, 'rank')} per node"
        return f"{nodes}, {ranks}, {self.memory}, {self.dtype_class} dtype"


@dataclass(frozen=True, slots=True)
class Table:
    """Names an algorithm for each message.

    Attributes:
        rows: the first one that matches is used.
        source: name of the file, for errors and reasons.
    """

    rows: tuple[Row, ...]
    source: str
    # Earlier look-ups: least sizes and algorithms, by situation.
    _found: dict[tuple[int, int, str, str], tuple[list[int], list[str]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def choose(
        self,
        nodes: int,
        ranks_per_node: int,
        memory: str,
        message_bytes: int,
        dtype_class: str = "float",
    ) -> str:
        """The name of the algorithm for a message.

        Args:
            nodes: number of nodes of the job.
            ranks_per_node: the same on each node.
            memory: "arena": shared by the ranks of a node; "device": on GPUs; "host": any other.
            message_bytes: payload of a rank.
            dtype_class: "float", "half" or "integer".
        """
        situation = (nodes, ranks_per_node, memory, dtype_class)
        found = self._found.get(situation)
        if found is None:
            number = self._find(*situation)
            choices = ((0, NATIVE),) if number is None else self.rows[number].choices
            found = [least for least, _ in choices], [name for _, name in choices]
            self._found[situation] = found
        return found[1][bisect_right(found[0], message_bytes) - 1]

    def explain(
        self,
        nodes: int,
        ranks_per_node: int,
        memory: str,
        message_bytes: int,
        dtype_class: str = "float",
    ) -> str:
        """Return the choice, its reason, and the second best's time. Args are those of `choose`."""
        choice = self.choose(nodes, ranks_per_node, memory, message_bytes, dtype_class)
        number = self._find(nodes, ranks_per_node, memory, dtype_class)
        if number is None:
            asked = Row(nodes, ranks_per_node, memory, (), dtype_class).describe()
            return (
                f"{format_bytes(message_bytes)} takes native: no row of {self.source} is for "
                f"{asked}"
            )
        row = self.rows[number]
        limit = max(least for least, _ in row.choices if least <= message_bytes)
        return (
            f"{format_bytes(message_bytes)} takes {choice}: row {number} of {self.source} "
            f"({row.describe()}) says so from {format_bytes(limit)} up"
            f"{_evidence(row, choice, message_bytes)}"
        )

    def measured_us(
        self,
        nodes: int,
        ranks_per_node: int,
        memory: str,
        message_bytes: int,
        dtype_class: str = "float",
    ) -> Mapping[str, float]:
        """Return the medians that are nearest to a message, in us. Args are those of `choose`."""
        number = self._find(nodes, ranks_per_node, memory, dtype_class)
        return {} if number is None else _nearest(self.rows[number], message_bytes)[1]

    def _find(self, nodes: int, ranks_per_node: int, memory: str, dtype_class: str) -> int | None:
        for number, row in enumerate(self.rows):
            if row.matches(nodes, ranks_per_node, memory, dtype_class):
                return number
        return None


def _nearest(row: Row, message_bytes: int) -> tuple[int, Mapping[str, float]]:
    """The measurement nearest below this size, or at the least one."""
    if not row.measured_us:
        return 0, {}
    sizes = [size for size, _ in row.measured_us]
    return row.measured_us[max(0, bisect_right(sizes, message_bytes) - 1)]


def _evidence(row: Row, choice: str, message_bytes: int) -> str:
    """The nearest measurement: a clause, or ""."""
    if not row.measured_us:
        return ""
    size, measured = _nearest(row, message_bytes)
    how = "simulated" if row.simulated else "measured"
    if choice not in measured:
        return f"; {choice} was not {how} at {format_bytes(size)}"
    others = {name: us for name, us in measured.items() if name != choice}
    text = f"; {how} at {format_bytes(size)}: {format_seconds(measured[choice] / 1e6)}"
    if not others:
        return text
    second = min(others, key=others.__getitem__)
    text += f", the next best, {second}, {format_seconds(others[second] / 1e6)}"
    # A winner has to win by more than the spread.
    closer = others[second] < measured[choice]
    return text + (" (faster, but not beyond the spread)" if closer else "")


# Measured on one machine of two cores with Open MPI 4.1.8 and 5.0.11 and MPICH 5.0.2, and cautious:
# on one node the ranks' shared memory wins at every size, inside and outside the arena; between
# nodes another algorithm replaces the library's own only for long messages, on which a ring cannot
# lose.
BUILT_IN = Table(
    (
        Row(1, 0, "arena", ((0, SHARED_MEMORY),)),
        Row(1, 0, "host", ((0, SHARED_MEMORY),)),
        Row(0, 0, "host", ((0, NATIVE), (1 << 20, "ring"))),
    ),
    "the built-in table",
)
# Intel MPI's own copies outside the arena are twice as fast while they fit the caches; measured
# with 2021.19 at 2 ranks.
_INTEL = Table(
    (
        Row(
            1, 2, "host", ((0, SHARED_MEMORY), (2 << 10, NATIVE), (2 << 20, SHARED_MEMORY)), "float"
        ),
        *BUILT_IN.rows,
    ),
    "the built-in table for Intel MPI",
)


def built_in(library: str) -> Table:
    """Return the built-in table for a library, by the text of MPI_Get_library_version."""
    return _INTEL if library.startswith("Intel") else BUILT_IN


def load(path: Path) -> Table:
    """Return the table in a JSON file, which becomes its source.

    Args:
        path: holds {"version": 1, "rows": [{"nodes", "ranks_per_node", "memory",
            "choices": [[least_bytes, algorithm], ...]}, ...]}; a row may also have "simulated",
            "library", "dtype_class" and "measured_us": [[message_bytes, {algorithm: us}], ...].

    Raises:
        UsageError: names the file, the line, the row and the rule that it breaks.
    """
    try:
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"table {path}: {error.strerror}") from None


def parse(content: bytes, source: str) -> Table:
    """The table in a file's content; as `load`."""
    try:
        document = json.loads(text := content.decode())
    except ValueError as error:
        raise UsageError(f"table {source}: not JSON: {error}") from None
    except RecursionError:
        raise UsageError(f"table {source}: not a table: nested too deep") from None
    if not isinstance(document, Mapping) or document.get("version") != 1:
        raise UsageError(f'table {source}: the top level must be an object with "version": 1')
    rows = document.get("rows")
    if not isinstance(rows, list):
        raise UsageError(f'table {source}: "rows" must be a list')
    where = (f"table {source}, {place}" for place in _places(text, len(rows)))
    return Table(tuple(map(_row, rows, where)), source)


def dump(table: Table) -> str:
    """Write a table as JSON that a person can read and edit: `load` reads it."""
    rows = ",\n".join(_dump_row(row) for row in table.rows)
    return f'{{"version": 1, "rows": [\n{rows}\n]}}\n'


def _dump_row(row: Row) -> str:
    head = {
        "nodes": row.nodes,
        "ranks_per_node": row.ranks_per_node,
        "memory": row.memory,
        "dtype_class": row.dtype_class,
        **{name: text for name in _TEXTS if (text := getattr(row, name))},
    }
    # Each choice and each measured size on a separate line.
    parts = [json.dumps(head)[1:-1], _dump_list("choices", row.choices)]
    if row.measured_us:
        measured = [
            (size, {name: float(f"{us:.4g}") for name, us in times.items()})
            for size, times in row.measured_us
        ]
        parts.append(_dump_list("measured_us", measured))
    return f"  {{{f',{chr(10)}   '.join(parts)}}}"


def _dump_list(name: str, items: Sequence[Any]) -> str:
    lines = ",\n".join(f"     {json.dumps(item)}" for item in items)
    return f'"{name}": [\n{lines}]'


def _places(text: str, count: int) -> list[str]:
    """Line and number of each row, for errors; the text is known to be JSON with rows."""
    decoder, places = json.JSONDecoder(), []
    rows = 0
    position = _next(text, text.index("{") + 1)
    while text[position] != "}":
        key, position = decoder.raw_decode(text, position)
        position = _next(text, position)
        if key == "rows":  # the last one counts
            rows = position + 1
        _, position = decoder.raw_decode(text, position)
        position = _next(text, position)
    for number in range(count):
        rows = _next(text, rows)
        places.append(f"line {text.count(chr(10), 0, rows) + 1}, row {number}")
        _, rows = decoder.raw_decode(text, rows)
    return places


def _next(text: str, position: int) -> int:
    """Where the next value, or the end of a list or an object, begins."""
    while text[position] in ",: \t\r\n":
        position += 1
    return position


def _row(row: Any, where: str) -> Row:
    if not isinstance(row, Mapping):
        raise UsageError(f"{where}: must be an object")
    known = Row.__dataclass_fields__
    for name in row:
        if name not in known:
            raise UsageError(f"{where}: unknown field {name!r}: use {', '.join(known)}")
    nodes, ranks_per_node = row.get("nodes"), row.get("ranks_per_node")
    if not (_is_count(nodes) and _is_count(ranks_per_node)):
        raise UsageError(f"{where}: nodes and ranks_per_node must be whole numbers, 0 for any")
    if row.get("memory") not in MEMORY_KINDS:
        raise UsageError(f"{where}: memory {row.get('memory')!r} must be one of {MEMORY_KINDS}")
    dtype_class = row.get("dtype_class", ANY_DTYPE)
    if dtype_class not in _CLASSES:
        raise UsageError(f"{where}: dtype_class {dtype_class!r} must be one of {_CLASSES}")
    texts = {name: row.get(name, "") for name in _TEXTS}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise UsageError(f"{where}: {name} {text!r} must be a text, {_TEXTS[name]}")
    choices = row.get("choices")
    if not isinstance(choices, list) or not choices:
        raise UsageError(f"{where}: choices must be a list of [least_bytes, algorithm]")
    return Row(
        nodes,
        ranks_per_node,
        row["memory"],
        tuple(_choices(choices, where, choices_of(row["memory"]))),
        dtype_class,
        tuple(_measured(row.get("measured_us", []), where)),
        **texts,
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 63


def choices_of(memory: str) -> tuple[str, ...]:
    """The names that a row for this kind of memory may choose."""
    return CARRIERS if memory == "device" else CHOICES


def _choices(choices: Sequence[Any], where: str, names: tuple[str, ...]) -> list[tuple[int, str]]:
    parsed: list[tuple[int, str]] = []
    for number, choice in enumerate(choices):
        here = f"{where}, choice {number}"
        if not isinstance(choice, list) or len(choice) != 2 or type(choice[0]) is not int:
            raise UsageError(f"{here}: {choice!r} must be [least_bytes, algorithm]")
        least, algorithm = choice
        if algorithm not in names:
            raise UsageError(f"{here}: invalid algorithm {algorithm!r}: use one of {names}")
        if not _is_count(least) or (least <= parsed[-1][0] if parsed else least):
            raise UsageError(f"{here}: sizes must start at 0 and ascend, not {least}")
        parsed.append((least, algorithm))
    return parsed


def _measured(items: Any, where: str) -> list[tuple[int, Mapping[str, float]]]:
    rule = "must be a list of [message_bytes, {algorithm: us}], ascending"
    if not isinstance(items, list):
        raise UsageError(f"{where}: measured_us {rule}")
    parsed: list[tuple[int, Mapping[str, float]]] = []
    for number, item in enumerate(items):
        good = (
            isinstance(item, list)
            and len(item) == 2
            and _is_count(item[0])
            and isinstance(item[1], Mapping)
            and all(type(us) in (int, float) and 0 <= us < 1e15 for us in item[1].values())
            and (not parsed or item[0] > parsed[-1][0])
        )
        if not good:
            raise UsageError(f"{where}, measured_us {number}: {item!r} {rule}")
        parsed.append((item[0], item[1]))
    return parsed
