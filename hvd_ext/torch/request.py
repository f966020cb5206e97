"""The arguments of DistributedOptimizer, and the pairs of them that exclude each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from hvd_ext import schedules, variables
from hvd_ext.arithmetic.summation_tree import slots_of_each_rank
from hvd_ext.compression.formats import NONE, Format
from hvd_ext.errors import UsageError
from hvd_ext.schedules import EVERY_STEP, Schedule
from hvd_ext.torch import horovods
from hvd_ext.torch.compression import wanted
from hvd_ext.torch.own import is_own
from hvd_ext.units import counted


@dataclass(frozen=True, eq=False)
class Request:
    """The arguments of one call, with the values of variables where it has none.

    Attributes:
        optimizer: the plain optimizer.
        compression: a value of Horovod or of hvd_ext, or text.
        passes: backward passes that fill a gradient.
        op: Horovod's operation.
        gradient_predivide_factor, num_groups, groups, process_set: see Horovod.
        sparse_as_dense: whether sparse gradients are exchanged as dense ones.
        sharded: whether the ranks of a node share the update.
        schedule: when nodes exchange.
        slots: slots of a reproducible step; 0: sums are in any order.
    """

    optimizer: torch.optim.Optimizer
    compression: Any
    passes: int
    op: Any
    gradient_predivide_factor: float
    num_groups: int
    groups: Any
    sparse_as_dense: bool
    process_set: Any
    sharded: bool
    schedule: Schedule
    slots: int

    @classmethod
    def of(
        cls,
        optimizer: torch.optim.Optimizer,
        *,
        compression: Any,
        op: Any,
        process_set: Any,
        sharded: bool | None,
        sync: Schedule | None,
        reproducible: int | None,
        **others: Any,
    ) -> Request:
        """Fill in defaults for None.

        Raises:
            UsageError: an argument or a variable has an invalid value.
        """
        slots = variables.REPRODUCIBLE.read() if reproducible is None else reproducible
        if slots is not None:
            slots_of_each_rank(slots, horovods.size())
        return cls(
            optimizer=optimizer,
            compression=horovods.Compression.none if compression is None else compression,
            op=horovods.Average if op is None else op,
            process_set=horovods.global_process_set if process_set is None else process_set,
            sharded=variables.SHARDED.read() if sharded is None else sharded,
            schedule=schedules.parse(variables.SYNC.read() if sync is None else sync),
            slots=slots or 0,
            **others,
        )

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Return all parameters of the optimizer."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def format(self) -> Format | str:
        """Return the compression between nodes.

        Raises:
            LookupError: only Horovod's own optimizer serves it.
        """
        return wanted(self.compression)

    def check(self) -> Request:
        """Check that the arguments go together, except those that only Horovod serves.

        Returns:
            The request with the backward passes that its slots take.

        Raises:
            UsageError: two of them exclude each other; names both, and says what to do.
        """
        for exclusion in EXCLUSIONS:
            first, second = (_FEATURES[name](self) for name in exclusion.names)
            if first and second:
                why = f"{exclusion.why}: " if exclusion.why else ""
                # Facts about the parameters cannot be left out.
                instead = "one of them" if exclusion.names[1] not in _OF_PARAMETERS else "it"
                raise UsageError(f"{first} with {second}: {why}leave {instead} out")
        if not self.slots:
            return self
        each = slots_of_each_rank(self.slots, horovods.size())
        if self.passes not in (1, each):
            raise UsageError(
                f"{_FEATURES['reproducible'](self)} with backward_passes_per_step={self.passes}: "
                f"each rank takes {each} of {counted(self.slots, 'slot')}: give "
                f"{each}, or leave it out"
            )
        return replace(self, passes=each)

    def not_served(self, reason: str) -> UsageError | None:
        """Return the error if neither the arena nor Horovod's optimizer can be used.

        Args:
            reason: why the arena cannot be used.
        """
        for name in ("reproducible", "sharded", "sync"):
            if asked := _FEATURES[name](self):
                return UsageError(f"{asked}: not served: {reason}; leave it out")
        if any(map(is_own, self.parameters)):
            return UsageError(
                f"Horovod's DistributedOptimizer with {_OWN}: the arena cannot take it: {reason}"
            )
        return None


@dataclass(frozen=True)
class Exclusion:
    """Two features that do not go together.

    Attributes:
        names: names of the two.
        why: the reason; "" if the names explain it.
    """

    names: tuple[str, str]
    why: str = ""


_OWN = "a model whose ranks have different filters"


def _compressed(request: Request) -> str:
    try:
        format = request.format
    except LookupError:
        return ""
    name = format.name if isinstance(format, Format) else format
    return "" if format is NONE else f"compression={name!r}"


def _sharded_halves(request: Request) -> str:
    halves = [p.dtype for p in request.parameters if p.dtype.itemsize == 2]
    if not (request.sharded and halves):
        return ""
    return f"sharded=True and parameters of {halves[0]}"


# The name of each feature in errors; "" if it is not requested.
_FEATURES: dict[str, Callable[[Request], str]] = {
    "reproducible": lambda r: f"reproducible={r.slots} (HVD_EXT_REPRODUCIBLE)" if r.slots else "",
    "sharded": lambda r: "sharded=True (HVD_EXT_SHARDED)" if r.sharded else "",
    "sync": lambda r: (
        f"sync={str(r.schedule)!r} (HVD_EXT_SYNC)" if r.schedule != EVERY_STEP else ""
    ),
    "compression": _compressed,
    "an op other than Average": lambda r: (
        "an op other than Average" if r.op != horovods.Average else ""
    ),
    "sharded with 16-bit parameters": _sharded_halves,
    "filters that differ between ranks": lambda r: _OWN if any(map(is_own, r.parameters)) else "",
}
_OF_PARAMETERS = {"sharded with 16-bit parameters", "filters that differ between ranks"}
EXCLUSIONS = (
    Exclusion(("sync", "sharded")),
    Exclusion(("sync", "an op other than Average")),
    Exclusion(("reproducible", "compression"), "compression rounds by the number of nodes"),
    Exclusion(("reproducible", "sync"), "nodes must exchange in every step"),
    Exclusion(
        ("reproducible", "sharded with 16-bit parameters"),
        "the ranks would share sums in float32",
    ),
    *(
        Exclusion((name, "filters that differ between ranks"))
        for name in ("sync", "reproducible", "an op other than Average", "sharded")
    ),
)


def table() -> str:
    """Return the Markdown table of features that exclude each other."""
    rows = [f"| {first} | {second} | {e.why} |" for e in EXCLUSIONS for first, second in [e.names]]
    return "\n".join(["| this | excludes | because |", "|---|---|---|", *rows])
