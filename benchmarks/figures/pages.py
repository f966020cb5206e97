"""Blocks of a page that are made from results; pure.

A block begins with `<!-- figures: NAME -->` and ends with `<!-- /figures -->`, each on its own
line. Everything between them is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- /figures -->)", re.DOTALL)


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Name and content of each block of a page."""
    for match in _BLOCK.finditer(page):
        yield match[2], match[3].strip("\n")


def fill(page: str, contents: Mapping[str, str]) -> str:
    """The page with the blocks of these names replaced; others stay."""

    def filled(match: re.Match[str]) -> str:
        content = contents.get(match[2])
        return match[0] if content is None else f"{match[1]}\n{content}\n\n{match[4]}"

    return _BLOCK.sub(filled, page)


def prose(page: str) -> str:
    """The page without blocks and code."""
    return re.sub(
        r"^```.*?^```|^    [^\n]*$|`[^`\n]*`", "", _BLOCK.sub("", page), flags=re.M | re.S
    )
