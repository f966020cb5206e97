"""Words: pages, help, messages and docstrings avoid coined words and sentences without a noun."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.ranks import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FOLDERS = (
    *("hvd_ext", "profiling", "launch", "training", "edsr", "resnet", "mesh", "cosmoflow"),
    *("benchmarks", "testbed", "toolchain", "examples"),
)
# A pattern, and the words to use.
PATTERNS = {
    r"(?i)\b(tell|tells|told|telling|foretold|foretells)\b": "report, predict, distinguish",
    r"(?i)\bof (its|their|your|our|one's|a rank's) own\b": "its own, separate",
    r"(?i)\banew\b": "again",
    r"(?i)\bin turns?\b": "interleaved, alternating, one after the other",
    r"(?i)\bby hand\b": "tuned, manually",
    r"(?i)\bas (it|they) comes?\b": "default, unchanged",
    r"(?i)\b(let|lets|letting) go of\b": "releases, frees",
    r"(?i)\b(go|goes|going|went|gone) on\b": "continue, resume",
    r"(?i)\b(mend|mends|mended)\b": "fix, repair",
    r"(?i)\bknobs?\b": "setting",
    r"(?i)(?<![-`])\bbeside\b(?!:)": "next to, alongside",
    r"(?i)\bjudged?\b": "evaluate, compare",
    r"(?i)\bgained on\b": "speedup over",
    r"(?i)\bfor ever\b": "hang, forever",
    r"(?i)\bnothing asked\b": "no change requested",
    r"(?i)\bhanded over\b|\bhanding over\b|\bhands over\b": "passes, gives",
    r"(?:^|[.:;!?]\s+|\|\s*|^- )Of (?!course)": "begin with the noun",
    r"(?:^|[.!?]\s+|\|\s*|^- )(What|Who|Whoever|Whatever) (?![^.|]*\?)": "begin with the noun",
}
# Only of pages, where a sentence is read without the code around it.
OF_PAGES = {
    r"\b(has|have) the bits of\b": "is bit-identical to",
    r"(?i)\bonce in (many|[\dHN]+) steps\b": "every N steps",
    r"\bof which\b": "put the clause next to its noun, or begin a new sentence",
    r"\bfrom which on\b": "beyond which, the first ... at which",
    r"(?i)\bbeyond (a|the) (its )?\d+ %": "at 95 % confidence",
    r"(?i)\b(neighbour|colour|behaviour)": "neighbor, color, behavior",
    r"(?i)\b(optimi|normali|recogni|initiali)s(e|ed|es|ing)\b": "optimize ...",
}


def markdown(path: Path) -> Iterator[tuple[int, str]]:
    """Paragraphs of a page, without its code."""
    text = re.sub(
        r"^```.*?^```|^    [^\n]*$|`[^`\n]*`",
        lambda code: "\n" * code[0].count("\n"),
        path.read_text(),
        flags=re.DOTALL | re.MULTILINE,
    )
    line = 1
    for part in re.split(r"(\n\s*\n|\n(?=[-|#*]|\d\. ))", text):
        yield line + part.count("\n", 0, len(part) - len(part.lstrip())), " ".join(part.split())
        line += part.count("\n")


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, messages and help of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for paragraph in re.split(r"\n\s*\n", node.value):
                yield node.lineno, " ".join(paragraph.split())


def found(path: Path) -> list[str]:
    is_page = path.suffix == ".md"
    texts = markdown(path) if is_page else strings(path)
    patterns = PATTERNS | OF_PAGES if is_page else PATTERNS
    return [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: {instead}"
        for line, text in texts
        for pattern, instead in patterns.items()
        for match in re.finditer(pattern, text)
    ]


def test_words_of_pages_are_plain() -> None:
    assert [line for page in PAGES for line in found(page)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_words_of_code_are_plain(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert [line for path in paths for line in found(path)] == []
