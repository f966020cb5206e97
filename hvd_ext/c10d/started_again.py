"""A script that starts itself for the other ranks, as Lightning's launcher does, keeps hvd_ext."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any


def start_through(module: str, script: str, *, is_module: bool) -> None:
    """Make this process start `script` by `python -m module` whenever it starts it again.

    Args:
        module: the module that runs scripts.
        script: a path, or the name of a module.
        is_module: whether `script` is a module's name.
    """
    # Every way to start a process calls this class, whatever the program imported.
    begin: Any = subprocess.Popen.__init__

    @functools.wraps(begin)
    def started(process: Any, args: Any, *others: Any, **named: Any) -> None:
        begin(process, _through(module, script, is_module, args), *others, **named)

    subprocess.Popen.__init__ = started  # type: ignore[assignment, method-assign]


def _through(module: str, script: str, is_module: bool, command: Any) -> Any:
    """Make a command that restarts `script` use `module`; return any other one unchanged."""
    if not isinstance(command, (list, tuple)) or command[:1] != type(command)([sys.executable]):
        return command
    words = [os.fspath(word) for word in command]
    # Python's own flags come first.
    first = next((at for at in range(1, len(words)) if not _is_flag(words[at])), len(words))
    if is_module:
        is_same = words[first : first + 2] == ["-m", script]
    else:
        is_same = words[first : first + 1] != [] and _path(words[first]) == _path(script)
    return [*words[:first], "-m", module, *words[first:]] if is_same else command


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word not in ("-m", "-c")


def _path(script: str) -> str:
    return os.path.realpath(script)
