"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write a file in one go."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
