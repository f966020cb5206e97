"""How the time of a step may grow with the ranks: the shapes that are fitted.

Each is a physical one: compute alone; the bytes of a ring; the levels of a tree over ranks or over
nodes; the last of ranks whose times scatter. A term that grows with the ranks themselves, or
without reason, fits what was measured and fails beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from hvprof.analysis.order_statistics import expected_maximum

_latest = lru_cache(maxsize=4096)(expected_maximum)


@dataclass(frozen=True, slots=True)
class Shape:
    """A name, and a function of the ranks; None for compute alone."""

    name: str
    growth: Callable[[float], float] | None


def shapes(ranks_per_node: int, *, strong: bool) -> tuple[Shape, ...]:
    """The shapes to choose from.

    Args:
        ranks_per_node: where it is 1 ranks are nodes.
        strong: the batch of all ranks is kept: compute shrinks as 1/p, and a ring's bytes, which
            hardly grow, are serial work.
    """
    found = [Shape("compute alone", None)]
    if strong:
        found.append(Shape("serial work", lambda ranks: 1.0))
    else:
        found.append(Shape("bytes of a ring", lambda ranks: 1 - 1 / ranks))
    found.append(Shape("lg of ranks", math.log2))
    if ranks_per_node > 1:
        found.append(
            Shape("lg of nodes", lambda ranks: math.log2(max(1.0, ranks / ranks_per_node)))
        )
    found.append(Shape("last of the ranks", _latest))
    return tuple(found)
