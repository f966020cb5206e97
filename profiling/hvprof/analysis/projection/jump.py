"""A jump between two measured sizes: another switch, another algorithm, a full node.

A fit through it gives neither side. It is looked for as one more term, compute that takes longer
from some size on, and believed where that explains far more than chance does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hvprof.analysis.projection.fit import Scale, fit
from hvprof.analysis.projection.points import Point, sizes_of
from hvprof.analysis.projection.shapes import Shape

# By chance, chi squared of one term passes it in 1 of 5000 places; and a jump worth a word.
_CHI_SQUARED, _LEAST = 14.0, 0.1
_LEAST_POINTS = 5


@dataclass(frozen=True, slots=True)
class Jump:
    """Compute takes `share` longer beyond `below` ranks; `above` is the next measured size."""

    below: int
    above: int
    share: float


def find_jump(points: Sequence[Point], shapes: Sequence[Shape], scale: Scale) -> Jump | None:
    """The largest jump that no shape explains, or None."""
    if len(points) < _LEAST_POINTS:
        return None
    smooth = min(fit(points, shape, scale).squares for shape in shapes)
    best: tuple[float, Jump] | None = None
    for below, above in pairwise(sizes_of(points)):
        stepped = dataclasses.replace(scale, jump=below)
        for shape in shapes:
            found = fit(points, shape, stepped)
            gained = (smooth - found.squares) / max(1.0, found.squares / found.freedom)
            share = float(found.factors[-1] / found.factors[0]) if found.factors[0] else 0.0
            if share > _LEAST and gained > max(_CHI_SQUARED, best[0] if best else 0.0):
                best = gained, Jump(below, above, share)
    return best[1] if best else None
