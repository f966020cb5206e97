"""Every error a user can meet, and the one place that turns them into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence


class HvdExtError(Exception):
    """An error that its reader can mend.

    The message quotes the value, the rule it breaks, and what to do, in one line.
    """

    exit_code = 1


class UsageError(HvdExtError):
    """A request that cannot be meant: a bad flag, path or file."""

    exit_code = 2


class StallError(HvdExtError):
    """Ranks did not arrive at an exchange in time; the message names them."""

    exit_code = 75


class MismatchError(HvdExtError):
    """Ranks disagree on something that shapes communication; the message says on what."""

    exit_code = 76


def run(main: Callable[[Sequence[str]], int], program: str) -> None:
    """Run `main(arguments)` as the process's only work and exit with its code.

    An HvdExtError becomes one line on standard error and its `exit_code`; Ctrl-C
    becomes 130; a reader that closed the pipe (`| head`) is no error.
    """
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except HvdExtError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        # What is still buffered has nowhere to go; without this the interpreter
        # would complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)
