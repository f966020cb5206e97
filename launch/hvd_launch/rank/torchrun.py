"""Variables that torchrun gives a rank: scripts written for it read them (`env://`). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_launch.rank.environment import RankInfo


def torchrun_variables(
    environ: Mapping[str, str], here: RankInfo, size: int, address: str, port: int
) -> dict[str, str]:
    """The variables of one rank.

    Args:
        environ: of the rank; the MASTER_ADDR and MASTER_PORT that it has are kept.
        here: which rank it is.
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
