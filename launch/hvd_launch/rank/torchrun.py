"""The variables that torchrun gives a rank, which scripts for it read (`env://`). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_launch.rank.environment import RankInfo


def torchrun_variables(
    environ: Mapping[str, str], here: RankInfo, size: int, address: str, port: int
) -> dict[str, str]:
    """Return the variables of one rank.

    Args:
        environ: the rank's environment, whose MASTER_ADDR and MASTER_PORT are kept.
        here: its rank.
        size: the number of ranks.
        address: the host of rank 0.
        port: a port of that host.
    """
    variables = {
        "RANK": str(here.rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(here.local_rank),
        "MASTER_ADDR": environ.get("MASTER_ADDR") or address,
        "MASTER_PORT": environ.get("MASTER_PORT") or str(port),
    }
    if here.local_size is not None:
        variables["LOCAL_WORLD_SIZE"] = str(here.local_size)
    return variables
