"""The time of a step's exchange on more ranks, those of a node and nodes apart.

No allreduce sends less than 2 (n-1)/n of its message (Patarasuk and Yuan, JPDC 69, 2009): a ring
does that, and more ranks hardly cost it anything. The time of Horovod's stacks was measured to grow
with the levels of a tree, 2 ceil(lg n). The first is a hard limit, the second the expectation for
a typical exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RING, TREE = "ring", "tree"
ALGORITHMS = (RING, TREE)


def passes(algorithm: str, count: float) -> float:
    """How often the gradients pass through a link between `count` ranks or nodes."""
    if count <= 1:
        return 0.0
    if algorithm == RING:
        return 2 * (count - 1) / count
    # Bisection comes from either side: a hair above a power of two is no level more.
    return 2.0 * math.ceil(math.log2(count) - 1e-9)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Time of an exchange.

    Attributes:
        algorithm: "ring" or "tree": how it grows.
        ranks_per_node: infinite where all ranks are taken to be like those of one node.
        within_s: seconds for one pass of the gradients within a node.
        between_s: the same through a node's link to the others.
    """

    algorithm: str
    ranks_per_node: float
    within_s: float
    between_s: float

    def time_s(self, ranks: float) -> float:
        """Seconds of the exchange of a step."""
        own = min(ranks, self.ranks_per_node)
        within_s = self.within_s * passes(self.algorithm, own)
        return within_s + self.between_s * passes(self.algorithm, ranks / own)

    def with_bandwidth(self, factor: float) -> Exchange:
        """Over links that are `factor` times as fast; of one node, over faster memory."""
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
    """An exchange of which only the nodes' link is known: within a node it costs nothing."""
    return Exchange(algorithm, ranks_per_node, 0.0, message_bytes / link_gb_s / 1e9)


def as_recorded(
    algorithm: str,
    time_s: float,
    message_bytes: float,
    ranks: int,
    ranks_per_node: int,
    link_gb_s: float | None,
) -> Exchange:
    """An exchange that took `time_s` between `ranks` ranks.

    On several nodes that is the time between nodes, or the link's where one is given. On one it
    is the time within a node; what a link to others would take follows from `link_gb_s`, and
    without one more ranks are taken to share this node.
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
