"""The formats in which gradients travel between nodes: pure."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_ext.errors import UsageError

BLOCK = 256  # elements that share a scale in int8, as in codec.c
AUTO = "auto"
_POWERSGD, _MOST_RANK = "powersgd", 32


@dataclass(frozen=True, slots=True)
class Format:
    """A format of float32; other dtypes are sent uncompressed.

    Attributes:
        name: as `compression=` takes it.
        number: in codec.c's FORMATS.
        has_residual: what is rounded away becomes part of the next step's gradient.
        about: what a user should know.
        item_bytes: of each element in a message.
        block_bytes: of what BLOCK elements share there.
        rank: of the two factors that a matrix is sent as, or 0.
    """

    name: str
    number: int
    has_residual: bool
    about: str
    item_bytes: int = 4
    block_bytes: int = 0
    rank: int = 0

    @property
    def is_coded(self) -> bool:
        """Whether each element is encoded by itself or in its block, and added by its owner."""
        return self.number > 0

    def message_bytes(self, count: int, columns: int) -> float:
        """Return the bytes of a gradient in a message, on average over steps.

        Args:
            count: number of elements.
            columns: elements of a row, or 0 for a vector, which is sent uncompressed in formats
                with a residual.
        """
        rows = count // columns if columns else 0
        if self.rank and self.rank < min(rows, columns):
            return 4 * self.rank * (rows + columns) / 2 + 4 * (count - rows * columns)
        if self.has_residual and not columns:
            return 4 * count
        return self.item_bytes * count + self.block_bytes * -(-count // BLOCK)


NONE = Format("none", 0, False, "float32 as it is")
BF16 = Format("bf16", 1, False, "2 bytes an element: 8 bits of precision, float32's range", 2)
FP16 = Format("fp16", 2, False, "2 bytes an element: 11 bits of precision, at most 65504", 2)
INT8 = Format(
    "int8",
    3,
    True,
    f"1 byte an element and 4 for every {BLOCK}; rounding errors are added to the next step; "
    "parameters of one dimension unchanged",
    item_bytes=1,
    block_bytes=4,
)
FORMATS = {f.name: f for f in (NONE, BF16, FP16, INT8)}
# The formats that "auto" chooses from, the least lossy first.
CANDIDATES = (NONE, BF16, INT8)


def powersgd(rank: int = 4) -> Format:
    """Send matrices as two factors of low rank, one of them in each step (PowerSGD).

    Args:
        rank: rank of the factors, at least 1.

    Returns:
        The format, for `compression=`.

    Raises:
        UsageError: a rank out of its range.
    """
    if not isinstance(rank, int) or not 1 <= rank <= _MOST_RANK:
        raise UsageError(f"powersgd: rank={rank!r}: give a whole number from 1 to {_MOST_RANK}")
    about = (
        f"matrices as factors of rank {rank}, one of them in each step; the remainder is "
        "added to later steps; parameters of one dimension unchanged"
    )
    return Format(f"{_POWERSGD}:rank={rank}", 0, True, about, rank=rank)


class Named:
    """The formats that Horovod does not have, as attributes of `hvd.Compression`."""

    bf16 = BF16
    int8 = INT8
    auto = AUTO
    powersgd = staticmethod(powersgd)


def parse(text: str) -> Format | None:
    """Return the format of that name; None for "auto", which measures.

    Raises:
        UsageError: no format has that name.
    """
    if text == AUTO:
        return None
    if text == _POWERSGD:
        return powersgd()
    name, _, rank = text.partition(":rank=")
    if name == _POWERSGD and rank.isdecimal():
        return powersgd(int(rank))
    if text not in FORMATS:
        names = ", ".join((*FORMATS, f"{_POWERSGD}:rank=4", AUTO))
        raise UsageError(f"invalid compression {text!r}: use one of {names}")
    return FORMATS[text]


def wire_bytes(format: Format, counts: list[tuple[int, int]]) -> float:
    """Return the bytes of one copy of these gradients in a message, on average over steps.

    Args:
        format: format of float32.
        counts: elements of each gradient, and of its rows (0 for a vector).
    """
    return sum(format.message_bytes(count, columns) for count, columns in counts)
