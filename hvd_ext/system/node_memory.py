"""The memory of a node, or of its control group, that a program can still allocate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/sys/fs/cgroup")
# For both versions of control groups: limit, usage, and prefix of the entries of memory.stat.
_VERSIONS = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
# File cache, which the kernel frees before an allocation fails.
_CACHES = ("inactive_file", "active_file")


class FreeMemory(NamedTuple):
    """Memory that is still available.

    Attributes:
        free_bytes: the number of bytes.
        limit: name of the limit, such as "the memory limit of /sys/fs/cgroup/job".
    """

    free_bytes: int
    limit: str


def free_memory(meminfo: Path = Path("/proc/meminfo"), groups: Path = _ROOT) -> FreeMemory:
    """Return the memory that a program can still allocate on this node or in its groups."""
    lines = meminfo.read_text().splitlines()
    free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return min([FreeMemory(free, "the memory of this machine"), *_left_in_groups(groups)])


def free_bytes(meminfo: Path = Path("/proc/meminfo"), groups: Path = _ROOT) -> int:
    """Return only the number of bytes of `free_memory`."""
    return free_memory(meminfo, groups).free_bytes


def _left_in_groups(root: Path) -> Iterator[FreeMemory]:
    names = [line.split(":", 2)[2].strip("/") for line in _own_groups()]
    folders = {root, root / "memory"}
    for name in names:
        for top in (root, root / "memory"):
            folders |= {top / name, *(top / parent for parent in Path(name).parents)}
    for folder in folders:
        for limit, usage, prefix in _VERSIONS:
            try:
                most, used = (folder / limit).read_text(), int((folder / usage).read_text())
                lines = (folder / "memory.stat").read_text().splitlines()
                known = dict(line.split() for line in lines)
            except OSError:
                continue
            if most.strip() != "max":
                cached = sum(int(known.get(prefix + cache, 0)) for cache in _CACHES)
                left = max(0, int(most) - used + cached)
                yield FreeMemory(left, f"the memory limit of {folder}")


def _own_groups() -> list[str]:
    try:
        return Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
