"""Hides what may be secret in a command, because recordings and reports are made to be shared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

HIDDEN = "***"

_NAME = r"[A-Za-z_]\w*"
_SECRET = r"(?i:[\w.-]*(?:token|key|secret|password))"
_IS_NAME = re.compile(_NAME)
_IS_SECRET = re.compile(_SECRET)
_IS_SECRET_FLAG = re.compile(rf"--?{_SECRET}")
# Flags before NAME=VALUE, and before NAME VALUE.
_ASSIGNING = ("-x", "-e", "--env", "--export")
_NAMING = ("-genv", "-env")
# The same in a word that is a script, as after `sh -c`.
_IN_SCRIPT = re.compile(
    rf"((?:\b[A-Z_][A-Z0-9_]*|\b{_SECRET}|(?:^|[;&|(]\s*|\benv\s+){_NAME}"
    rf"|(?<!\S)(?:{'|'.join(_ASSIGNING)})[=\s]\s*{_NAME})="
    rf"|(?<!\S)(?:{'|'.join(_NAMING)})\s+{_NAME}\s+|(?<!\S)--?{_SECRET}(?:=|\s+))"
    r"""((?:"[^"]*"|'[^']*'|[^\s;&|"'])+)"""
)


def hide_secrets(command: Sequence[str]) -> list[str]:
    """The command with *** in place of values that may be secret.

    They are the values of environment variables (`-x NAME=VALUE`, `-genv NAME VALUE`, `--env`,
    `NAME=VALUE` before a command or with a name in capitals), and of flags and settings whose
    names end with token, key, secret or password.
    """
    return [_shown(command, place) for place in range(len(command))]


def _shown(command: Sequence[str], place: int) -> str:
    word = command[place]
    before = command[place - 1] if place else ""
    name, equals, value = word.partition("=")
    if _IS_SECRET_FLAG.fullmatch(before) and not word.startswith("-"):
        return HIDDEN
    if place > 1 and command[place - 2] in _NAMING:
        return HIDDEN
    if equals and name in _ASSIGNING and "=" in value:
        return f"{name}={value.partition('=')[0]}={HIDDEN}"
    if equals and (
        before in _ASSIGNING
        or _IS_SECRET_FLAG.fullmatch(name)
        or _IS_SECRET.fullmatch(name)
        or (_IS_NAME.fullmatch(name) and (name.isupper() or _precedes_command(command, place)))
    ):
        return f"{name}={HIDDEN}"
    return _IN_SCRIPT.sub(rf"\1{HIDDEN}", word) if re.search(r"\s", word) else word


def _precedes_command(command: Sequence[str], place: int) -> bool:
    """Whether NAME=VALUE follows env, or precedes a word that can be a command."""
    if place and Path(command[place - 1]).name == "env":
        return True
    rest = (word for word in command[place + 1 :] if "=" not in word)
    return not next(rest, "-").startswith("-")
