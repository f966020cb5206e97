"""The corpus of programs with known causes: each has its files."""

from __future__ import annotations

from pathlib import Path

import tests.corpus
from tests.corpus.programs import PROGRAMS

FOLDER = Path(tests.corpus.__file__).parent


def names(folder: str) -> set[str]:
    return {path.stem for path in (FOLDER / folder).glob("*.py")} - {"__init__"}


def test_every_program_is_listed_once() -> None:
    assert len({one.name for one in PROGRAMS}) == len(PROGRAMS) == 31
    for folder in ("known", "held_out", "patterns"):
        assert names(folder) == {one.name for one in PROGRAMS if one.folder == folder}


def test_every_advice_has_its_program() -> None:
    for folder in ("known", "held_out", "patterns"):
        advised = {one.name for one in PROGRAMS if one.folder == folder and one.advice}
        assert names(f"advised/{folder}") == advised
