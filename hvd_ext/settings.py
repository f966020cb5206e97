"""The variables that hvd_ext reads; each has a default that needs no setting."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hvd_ext.errors import UsageError
from hvd_ext.units import parse_bytes


def stall_timeout_s() -> float:
    """HVD_EXT_STALL_TIMEOUT_S: how long a rank is waited for before the job ends.

    The default, 600 s, leaves time for what one rank does alone: evaluation, writing
    a checkpoint.

    Raises:
        UsageError: not a number above 0.
    """
    text = os.environ.get("HVD_EXT_STALL_TIMEOUT_S", "600")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise UsageError(f"HVD_EXT_STALL_TIMEOUT_S={text!r}: give a number of seconds above 0")
    return value


def bucket_bytes() -> int | None:
    """HVD_EXT_BUCKET_BYTES: the most a bucket of the arena holds, such as "4 MiB".

    Without it, buckets are fused by what was measured in the first steps.

    Raises:
        UsageError: not a size.
    """
    text = os.environ.get("HVD_EXT_BUCKET_BYTES")
    if text is None:
        return None
    try:
        most = parse_bytes(text)
    except UsageError:
        most = 0
    if most < 1:
        raise UsageError(
            f"HVD_EXT_BUCKET_BYTES={text!r}: give a size above 0, such as 4MiB, or unset it"
        )
    return most


def device_arena() -> bool:
    """HVD_EXT_DEVICE_ARENA: 1 has gradients on GPUs reduced by hvd_ext, over CUDA IPC.

    Raises:
        UsageError: neither 0 nor 1.
    """
    return _switch("HVD_EXT_DEVICE_ARENA", "0 for Horovod's own exchange")


def sharded() -> bool:
    """HVD_EXT_SHARDED: 1 has the ranks of a node share every optimizer's update.

    Raises:
        UsageError: neither 0 nor 1.
    """
    return _switch("HVD_EXT_SHARDED", "0 to have every rank update all parameters")


def kernels() -> str | None:
    """HVD_EXT_KERNELS: the vector instructions of the kernels; None: the widest there are."""
    return os.environ.get("HVD_EXT_KERNELS")


def compression() -> str:
    """HVD_EXT_COMPRESSION: a format for scripts that name none: as `compression=` takes it."""
    return os.environ.get("HVD_EXT_COMPRESSION", "none")


def sync() -> str:
    """HVD_EXT_SYNC: when nodes exchange, as `sync=` takes it, for scripts that do not say."""
    return os.environ.get("HVD_EXT_SYNC", "every_step")


def reproducible() -> int | None:
    """HVD_EXT_REPRODUCIBLE: slots of a step, as `reproducible=` takes them; None: not set.

    Raises:
        UsageError: not a whole number.
    """
    text = os.environ.get("HVD_EXT_REPRODUCIBLE")
    if text is None:
        return None
    if not text.isdecimal():
        raise UsageError(
            f"HVD_EXT_REPRODUCIBLE={text!r}: give a number of slots, such as 8, or unset it"
        )
    return int(text)


def audit_folder() -> Path | None:
    """HVD_EXT_AUDIT: the folder into which optimizers write what they train with."""
    text = os.environ.get("HVD_EXT_AUDIT")
    return Path(text) if text else None


def compares_replicas() -> bool:
    """HVD_EXT_AUDIT_EVERY is set: ranks compare their parameters."""
    return "HVD_EXT_AUDIT_EVERY" in os.environ


def audit_every() -> tuple[int, bool]:
    """HVD_EXT_AUDIT_EVERY: steps from one audit to the next, and whether it only warns.

    Raises:
        UsageError: neither a whole number above 0, nor one with ":warn".
    """
    text = os.environ.get("HVD_EXT_AUDIT_EVERY", "1")
    number, colon, action = text.partition(":")
    if not number.isdecimal() or int(number) < 1 or (colon and action != "warn"):
        raise UsageError(
            f"HVD_EXT_AUDIT_EVERY={text!r}: give a number of steps, such as 100, or 100:warn to "
            "continue after a difference"
        )
    return int(number), bool(colon)


def keep_memory(environ: Mapping[str, str]) -> bool:
    """HVD_EXT_KEEP_MEMORY: 0 has freed memory go back to the kernel, as glibc does by itself.

    Raises:
        UsageError: neither 0 nor 1.
    """
    return _switch("HVD_EXT_KEEP_MEMORY", "0 for malloc as it is", "1", environ)


def table_path() -> str | None:
    """HVD_EXT_TABLE: a table of allreduce algorithms, read by rank 0."""
    return os.environ.get("HVD_EXT_TABLE")


def _switch(
    name: str, otherwise: str, default: str = "0", environ: Mapping[str, str] | None = None
) -> bool:
    text = (os.environ if environ is None else environ).get(name, default)
    if text not in ("0", "1"):
        raise UsageError(f"{name}={text!r}: give 1, or {otherwise}")
    return text == "1"
