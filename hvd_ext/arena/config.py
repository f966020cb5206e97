"""The configuration that the arenas of a job, or of a model, share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvd_ext.compression.formats import NONE, Format
from hvd_ext.job.stalls import STALL_TIMEOUT

if TYPE_CHECKING:
    from hvd_ext.allreduce.table import Table
    from hvd_ext.job.topology import Topology


@dataclass(frozen=True)
class ArenaConfig:
    """How arenas exchange, the same on every rank.

    Attributes:
        topology: nodes and ranks; homogeneous.
        table: names the algorithm between nodes, by the size of a shard, and the carrier of each
            bucket on GPUs.
        timeout_s: how long ranks are waited for.
        format: format in which float32 travels between nodes.
        setting: name of the setting of `timeout_s`, for errors.
    """

    topology: Topology
    table: Table
    timeout_s: float
    format: Format = NONE
    setting: str = STALL_TIMEOUT
