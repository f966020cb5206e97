"""The time of a step's exchange on more ranks, within a node and between nodes.

No allreduce sends less than 2 (n-1)/n of its message (Patarasuk and Yuan, JPDC 69, 2009): a ring
reaches that, and more ranks cost it very little. The measured time of Horovod's stacks grows with
the levels of a tree, 2 ceil(lg n). The ring is a hard limit; the tree is what to expect of a
typical exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RING, TREE = "ring", "tree"
ALGORITHMS = (RING, TREE)


def passes(algorithm: str, count: float) -> float:
    """Return how often the gradients pass through a link between `count` ranks or nodes."""
    if count <= 1:
        return 0.0
    if algorithm == RING:
        return 2 * (count - 1) / count
    # Bisection approaches from both sides: a number slightly above a power of two is no new level.
    return 2.0 * math.ceil(math.log2(count) - 1e-9)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Time of an exchange.

    Attributes:
        algorithm: "ring" or "tree": how it grows.
        ranks_per_node: infinite if all ranks are treated as ranks of one node.
        within_s: seconds for one pass of the gradients within a node.
        between_s: the same through a node's link to the others.
    """

    algorithm: str
    ranks_per_node: float
    within_s: float
    between_s: float

    def time_s(self, ranks: float) -> float:
        """Return the seconds of the exchange of a step."""
        own = min(ranks, self.ranks_per_node)
        within_s = self.within_s * passes(self.algorithm, own)
        return within_s + self.between_s * passes(self.algorithm, ranks / own)

    def with_bandwidth(self, factor: float) -> Exchange:
        """Return the exchange over links (on one node, over memory) `factor` times as fast."""
        alone = math.isinf(self.ranks_per_node)
        return Exchange(
            self.algorithm,
            self.ranks_per_node,
            self.within_s / factor if alone else self.within_s,
            self.between_s / factor,
        )


def over_link(
    algorithm: str, message_bytes: float, link_gb_s: float, ranks_per_node: int
) -> Exchange:
    """Make an exchange with a known link between nodes; within a node it costs nothing."""
    return Exchange(algorithm, ranks_per_node, 0.0, message_bytes / link_gb_s / 1e9)


def as_recorded(
    algorithm: str,
    time_s: float,
    message_bytes: float,
    ranks: int,
    ranks_per_node: int,
    link_gb_s: float | None,
) -> Exchange:
    """Make an exchange that took `time_s` between `ranks` ranks.

    On several nodes, this is the time between nodes, unless a link is given. On one node, it is the
    time within the node; the time between nodes follows from `link_gb_s`, and without that, more
    ranks are assumed to share this node.
    """
    nodes = ranks / min(ranks, ranks_per_node)
    within_s = time_s / passes(algorithm, ranks) if nodes == 1 else 0.0
    if link_gb_s is not None:
        between_s = message_bytes / link_gb_s / 1e9
    elif nodes > 1:
        between_s = time_s / passes(algorithm, nodes)
    else:
        return Exchange(algorithm, math.inf, within_s, 0.0)
    return Exchange(algorithm, ranks_per_node, within_s, between_s)
