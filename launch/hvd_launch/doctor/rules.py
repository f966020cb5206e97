"""From what was seen on a machine to what is right and wrong with it. Pure.

Each finding has its evidence; one that is wrong also says what it costs and how to fix it.
"""

from __future__ import annotations

from hvd_launch.doctor import rules_builds, rules_mpi, rules_node
from hvd_launch.doctor.model import Finding, Snapshot


def examine(seen: Snapshot) -> list[Finding]:
    """All findings, in the order of a person's questions."""
    rules = (*rules_mpi.RULES, *rules_builds.RULES, *rules_node.RULES)
    return [finding for rule in rules for finding in rule(seen)]
