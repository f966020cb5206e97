"""Reads the fingerprints that `hvprof record --audit` keeps next to a recording."""

from __future__ import annotations

from pathlib import Path

from hvd_ext.audit import SUFFIX, Audit, read_folder
from hvprof.recording.load import AUDIT_NAME


def has_audit(directory: Path) -> bool:
    """Whether a recording was made with --audit, and a rank was audited."""
    return any((directory / AUDIT_NAME).glob(f"*{SUFFIX}"))


def read_audits(path: Path) -> dict[int, list[Audit]]:
    """The audits of a recording, or of a folder that HVD_EXT_AUDIT named, by optimizer.

    Raises:
        UsageError: there are none, or some rank's is missing.
    """
    inside = path / AUDIT_NAME
    return read_folder(inside if inside.is_dir() else path)
