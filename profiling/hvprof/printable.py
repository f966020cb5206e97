"""Names that others chose, made fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text without what would steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
