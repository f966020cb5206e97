"""Run several programs in one process, and so several trainers in one job. Argument: a folder.

Its commands.json has the command lines. Each rank leaves in N-HOST-PID.json what its N-th run
printed, and the code that a process of its own would have ended with.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import socket
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from hvd_ext.cli import run


def main_of(program: str) -> Callable[[list[str]], int]:
    """What `python -m PROGRAM` runs: of a module, or of a package."""
    module = importlib.import_module(program)
    if not hasattr(module, "main"):
        module = importlib.import_module(f"{program}.__main__")
    main: Callable[[list[str]], int] = module.main
    return main


folder = Path(sys.argv[1])
for number, (program, *flags) in enumerate(json.loads((folder / "commands.json").read_text())):
    code, out, err = None, io.StringIO(), io.StringIO()
    sys.argv = [program, *flags]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            run(main_of(program), program)
        except SystemExit as left:
            code = left.code
    done = {"returncode": code, "stdout": out.getvalue(), "stderr": err.getvalue()}
    name = f"{number}-{socket.gethostname()}-{os.getpid()}.json"
    (folder / name).write_text(json.dumps(done))
