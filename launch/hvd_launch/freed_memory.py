"""Settings with which malloc keeps freed memory, in every program."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_ext.system import freed_memory
from hvd_launch.settings import Setting

_REASONS = {
    "MALLOC_MMAP_MAX_": (
        "65536: a large block is mapped for itself, and goes back to the kernel when it is freed",
        "large blocks are taken from memory that the rank already has",
    ),
    "MALLOC_TRIM_THRESHOLD_": (
        "128 KiB, and up to 64 MiB as larger blocks are freed",
        "memory that a step frees is kept for the next one, which avoids page faults",
    ),
}


def settings(environ: Mapping[str, str]) -> tuple[Setting, ...]:
    """Return settings of glibc's malloc; none if the environment has some, or disables them.

    Raises:
        UsageError: HVD_EXT_KEEP_MEMORY is neither 0 nor 1.
    """
    if freed_memory.left_alone(environ):
        return ()
    source = "mallopt(3); HVD_EXT_KEEP_MEMORY=0 leaves it"
    return tuple(
        Setting(name, value, *_REASONS[name], source)
        for name, value in freed_memory.VARIABLES.items()
    )
