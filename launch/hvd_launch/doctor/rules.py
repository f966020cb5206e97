"""Findings from the observations of a machine. Pure.

Each finding has its evidence; a problem also has its impact and its remedy.
"""

from __future__ import annotations

from hvd_launch.doctor import rules_builds, rules_mpi, rules_node
from hvd_launch.doctor.model import Finding, Snapshot


def examine(seen: Snapshot) -> list[Finding]:
    """Return all findings, in the order in which a person would ask."""
    rules = (*rules_mpi.RULES, *rules_builds.RULES, *rules_node.RULES)
    return [finding for rule in rules for finding in rule(seen)]
