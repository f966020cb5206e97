"""What is to be run: how many ranks, on which hosts, of which command. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hvd_ext.errors import UsageError

# What a rank on another host has to find as it was where the job was started.
_EXPORTED = re.compile(
    r"PATH|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV"
    r"|(PYTHON|OMP_|MKL_|HOROVOD_|HVD_EXT_|HVPROF_|TORCH_|PYTORCH_|CUDA_|NCCL_|UCX_).*"
)
# Which devices a rank sees is its own host's matter, not the launching host's.
_KEPT_BACK = re.compile(r".*VISIBLE_DEVICES")


@dataclass(frozen=True)
class Host:
    """A machine and how many ranks it takes."""

    name: str
    slots: int


@dataclass(frozen=True)
class Job:
    """One launch.

    Attributes:
        size: number of ranks.
        hosts: where they run; empty: on this machine, or where the scheduler says.
        slots: ranks that the hosts take without sharing cores.
        exported: names of the environment variables that every rank gets.
        as_root: the launching user is root.
        command: the program of each rank and its arguments.
    """

    size: int
    hosts: tuple[Host, ...]
    slots: int
    exported: tuple[str, ...]
    as_root: bool
    command: tuple[str, ...]

    @property
    def oversubscribed(self) -> bool:
        """There are more ranks than slots."""
        return self.size > self.slots


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read "node1:4,node2:4"; a host without slots takes one rank.

    Raises:
        UsageError: an entry is no host name with a positive number of slots.
    """
    hosts = []
    for entry in text.split(","):
        match = re.fullmatch(
            r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::([0-9]{1,6}))?", entry
        )
        slots = int(match.group(2) or 1) if match else 0
        if match is None or slots < 1:
            raise UsageError(f"{entry!r} is no host: write NAME:SLOTS,... such as node1:4,node2:4")
        hosts.append(Host(match.group(1), slots))
    return tuple(hosts)


def exported_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables that ranks on other hosts need, sorted."""
    return tuple(
        sorted(n for n in environ if _EXPORTED.fullmatch(n) and not _KEPT_BACK.fullmatch(n))
    )
