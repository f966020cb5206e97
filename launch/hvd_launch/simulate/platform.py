"""The cluster that is simulated: its network, and the time of a message and a byte on a host. Pure.

It is read from and written as JSON, so that it can be edited, and becomes a platform file of
SimGrid.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hvd_ext.errors import UsageError
from hvd_ext.units import KIB, counted

TOPOLOGIES = ("star", "fat_tree", "dragonfly")
# A simulated second is a millisecond: smpirun prints six digits.
SCALE = 1000.0


@dataclass(frozen=True)
class Platform:
    """A cluster of any number of equal nodes.

    Attributes:
        topology: one of TOPOLOGIES.
        link_gbit: Gbit/s of every link, in either direction at once.
        latency_us: latency of each link; a star has two links between any two nodes.
        message_us: time that a message takes on its sender's host, and on its receiver's.
        byte_ns: time that each of its bytes takes on either host.
        combine_ns: time to combine a byte.
        eager_kib: a message below this size leaves before its receiver is ready.
        memory_gbyte_s, memory_latency_us: bandwidth and latency between two ranks of a node.
        nodes_per_switch: for a fat tree and a dragonfly.
        tapering: for a fat tree: the links down from a switch for each link up.
        switches_per_chassis, chassis_per_group: for a dragonfly. All switches of a chassis are
            linked with each other, all chassis of a group, and all groups.
    """

    topology: str = "star"
    link_gbit: float = 100.0
    latency_us: float = 0.5
    message_us: float = 1.0
    byte_ns: float = 0.0
    combine_ns: float = 0.1
    eager_kib: float = 64.0
    memory_gbyte_s: float = 10.0
    memory_latency_us: float = 0.5
    nodes_per_switch: int = 32
    tapering: float = 1.0
    switches_per_chassis: int = 16
    chassis_per_group: int = 4

    def __post_init__(self) -> None:
        if self.topology not in TOPOLOGIES:
            raise UsageError(f"topology {self.topology!r}: use one of {', '.join(TOPOLOGIES)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "topology":
                continue
            whole = field.type == "int"
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                kind = "a whole number" if whole else "a number"
                raise UsageError(f"{field.name} {value!r}: must be {kind}")
            least_excluded = field.name in _MAY_BE_ZERO
            if not (0 <= value < math.inf) or (value == 0 and not least_excluded):
                raise UsageError(f"{field.name} {value!r}: must be above 0")
        if self.tapering < 1:
            raise UsageError(f"tapering {self.tapering!r}: must be at least 1 (no tapering)")

    @property
    def eager_bytes(self) -> int:
        return int(self.eager_kib * KIB)

    def describe(self) -> str:
        """The platform in a few words."""
        text = f"{self.topology} of {self.link_gbit:g} Gbit/s, {self.latency_us:g} us a link"
        tapered = self.topology == "fat_tree" and self.tapering > 1
        return f"{text}, tapering {self.tapering:g}" if tapered else text

    def xml(self, nodes: int, ranks_per_node: int, link_share: float = 1.0) -> str:
        """The platform file.

        Args:
            nodes: number of nodes that have ranks; a topology may need more to be complete.
            ranks_per_node: number of ranks on a node; each has a core for itself.
            link_share: share of the links' bandwidth that these ranks have.

        Raises:
            UsageError: the topology cannot have this many nodes.
        """
        shape, built = self._shape(nodes)
        bandwidth = self.link_gbit * 1e9 / 8 * link_share / SCALE
        attributes = {
            "id": "cluster",
            "prefix": "node",
            "suffix": "",
            "radical": f"0-{built - 1}",
            "speed": f"{1e9 / max(self.combine_ns, 1e-9) / SCALE:.6g}f",
            "core": str(ranks_per_node),
            "bw": f"{bandwidth:.9g}Bps",
            "lat": f"{self.latency_us * 1e-6 * SCALE:.9g}s",
            "sharing_policy": "SPLITDUPLEX",
            "loopback_bw": f"{self.memory_gbyte_s * 1e9 / SCALE:.9g}Bps",
            "loopback_lat": f"{self.memory_latency_us * 1e-6 * SCALE:.9g}s",
            **shape,
        }
        words = " ".join(f'{name}="{value}"' for name, value in attributes.items())
        return (
            "<?xml version='1.0'?>\n"
            '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
            f'<platform version="4.1">\n<cluster {words}/>\n</platform>\n'
        )

    def host_costs(self) -> dict[str, str]:
        """SMPI's settings for the time of a message on its hosts, and for when it leaves."""
        cost = f"0:{self.message_us * 1e-6 * SCALE:.9g}:{self.byte_ns * 1e-9 * SCALE:.9g}"
        return {
            **dict.fromkeys(("smpi/os", "smpi/ois", "smpi/or"), cost),
            "smpi/async-small-thresh": str(self.eager_bytes),
            "smpi/send-is-detached-thresh": str(self.eager_bytes),
        }

    def _shape(self, nodes: int) -> tuple[dict[str, str], int]:
        """SimGrid's words for the topology, and the number of its nodes."""
        if self.topology == "star" or nodes <= self.nodes_per_switch:
            return {}, nodes
        below = self.nodes_per_switch
        if self.topology == "fat_tree":
            switches = math.ceil(nodes / below)
            above = max(1, round(below / self.tapering))
            words = f"2;{below},{switches};1,{above};1,1"
            return {"topology": "FAT_TREE", "topo_parameters": words}, below * switches
        switches, chassis = self.switches_per_chassis, self.chassis_per_group
        group = below * switches * chassis
        groups = math.ceil(nodes / group)
        if groups > switches:
            raise UsageError(
                f"{counted(nodes, 'node')}: a dragonfly has a link between any two groups, so at "
                f"most switches_per_chassis ({switches}) groups, here of {counted(group, 'node')}"
            )
        words = f"{groups},1;{chassis},1;{switches},1;{below}"
        return {"topology": "DRAGONFLY", "topo_parameters": words}, group * groups


_MAY_BE_ZERO = ("latency_us", "message_us", "byte_ns", "combine_ns", "eager_kib")


def load(path: Path) -> Platform:
    """Read a platform; values that the file does not name have their defaults.

    Raises:
        UsageError: names the file and the rule that it breaks.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"platform {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"platform {path}: not JSON: {error}") from None
    if not isinstance(document, Mapping):
        raise UsageError(f"platform {path}: must be an object, such as {dump(Platform())}")
    return parse(document, f"platform {path}")


def parse(document: Mapping[str, Any], where: str) -> Platform:
    """The same from JSON's types."""
    known = [field.name for field in fields(Platform)]
    for name in document:
        if name not in known:
            raise UsageError(f"{where}: unknown field {name!r}: use {', '.join(known)}")
    try:
        return Platform(**document)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def dump(platform: Platform) -> str:
    """Write a platform as JSON: `load` reads it."""
    return json.dumps(asdict(platform), indent=2) + "\n"
