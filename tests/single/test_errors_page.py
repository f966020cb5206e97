"""docs/reference/errors.md: each message exists in the code, and each exit code is listed."""

from __future__ import annotations

import ast
import re

import pytest

from hvd_ext import errors
from testbed.ranks import ROOT

PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text()
MESSAGES = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)
FOLDERS = ("hvd_ext", "profiling", "launch", "training")


@pytest.fixture(scope="module")
def texts() -> str:
    """All string constants of the code, those within f-strings included."""
    return "\0".join(
        node.value
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_the_page_has_twenty_messages() -> None:
    assert len(MESSAGES) >= 20


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_on_the_page_is_one_of_the_code(texts: str, message: str) -> None:
    assert message in texts


def test_every_exit_code_is_listed() -> None:
    listed = set(map(int, re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)))
    codes = {
        error.exit_code
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.HvdExtError)
    }
    assert codes <= listed
