"""Has malloc of every rank keep what its program frees, whatever the program is."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_ext import freed_memory
from hvd_launch.settings import Setting

_TOLD = {
    "MALLOC_MMAP_MAX_": (
        "65536: a large block is mapped for itself, and goes back to the kernel when it is freed",
        "large blocks too come from memory that the rank has already",
    ),
    "MALLOC_TRIM_THRESHOLD_": (
        "128 KiB, and up to 64 MiB as larger blocks are freed",
        "what a step frees is kept for the next one, which need not get its pages anew",
    ),
}


def settings(environ: Mapping[str, str]) -> tuple[Setting, ...]:
    """For glibc's malloc; nothing where somebody has set it, or wants it as it is.

    Raises:
        UsageError: HVD_EXT_KEEP_MEMORY is neither 0 nor 1.
    """
    if freed_memory.left_alone(environ):
        return ()
    source = "mallopt(3); HVD_EXT_KEEP_MEMORY=0 leaves it"
    return tuple(
        Setting(name, value, *_TOLD[name], source) for name, value in freed_memory.VARIABLES.items()
    )
