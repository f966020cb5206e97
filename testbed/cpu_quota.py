"""A control group with a CPU quota, as a container or a batch job has one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hvd_ext.errors import HvdExtError

# Control groups of version 1, where "cpu" is a hierarchy, and of version 2.
_ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
_PERIOD_US = 100_000
# The quota alone is to hold a process back: it comes before those of other groups.
_MOST_SHARES, _MOST_WEIGHT = "262144", "10000"


class QuotaError(HvdExtError):
    """This machine cannot limit a process's time on its cores; the message says why."""


@contextmanager
def cpu_quota(cores: float) -> Iterator[Path]:
    """Make a control group whose processes have so many cores between them.

    Yields:
        Its folder: a process joins it by writing its number to `cgroup.procs` there.

    Raises:
        QuotaError: no privileges, or no control groups.
    """
    root = next((one for one in _ROOTS if (one / "cgroup.procs").exists()), None)
    if root is None:
        raise QuotaError("no control groups in /sys/fs/cgroup: a CPU quota needs them")
    group = root / f"quota-{os.getpid()}-{os.urandom(4).hex()}"
    quota_us = round(cores * _PERIOD_US)
    try:
        group.mkdir()
    except OSError as error:
        raise QuotaError(f"a CPU quota needs root: {group}: {error.strerror}") from None
    try:
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            (group / "cpu.shares").write_text(_MOST_SHARES)
        else:
            with suppress(OSError):  # it may be on already, or not be allowed to change
                (root / "cgroup.subtree_control").write_text("+cpu")
            if not (group / "cpu.max").exists():
                raise QuotaError(f"{root} has no control of CPUs: a CPU quota needs it")
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
            (group / "cpu.weight").write_text(_MOST_WEIGHT)
        yield group
    finally:
        # Processes that are still there have been ended by who started them, or end soon.
        with suppress(OSError):
            group.rmdir()
