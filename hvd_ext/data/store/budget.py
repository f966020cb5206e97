"""How much memory a store may take."""

from __future__ import annotations

from pathlib import Path

from hvd_ext.data.plan import SHARE_OF_FREE

_ROOT = Path("/sys/fs/cgroup")
# Of both versions of control groups: limit, usage, and what of it is file cache that can go.
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def rank_budget(local_size: int) -> int:
    """Bytes that a rank may keep, unless a person says otherwise, of `local_size` on a node."""
    return int(SHARE_OF_FREE * free_bytes()) // local_size


def free_bytes(meminfo: Path = Path("/proc/meminfo"), groups: Path = _ROOT) -> int:
    """Memory of this node, or of its control group, that a program can still take."""
    lines = meminfo.read_text().splitlines()
    free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return min([free, *_left_in_groups(groups)])


def _left_in_groups(root: Path) -> list[int]:
    names = [line.split(":", 2)[2].strip("/") for line in _own_groups()]
    folders = {root, root / "memory"}
    for name in names:
        for top in (root, root / "memory"):
            folders |= {top / name, *(top / parent for parent in Path(name).parents)}
    left = []
    for folder in folders:
        for limit, usage, cache in _VERSIONS:
            try:
                most, used = (folder / limit).read_text(), int((folder / usage).read_text())
                known = dict(line.split() for line in (folder / "memory.stat").open())
            except OSError:
                continue
            if most.strip() != "max":
                left.append(max(0, int(most) - used + int(known.get(cache, 0))))
    return left


def _own_groups() -> list[str]:
    try:
        return Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
