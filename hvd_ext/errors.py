"""Every error a user can meet, and the one place that turns them into exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence


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
    code = 0
    with reader_may_leave():
        try:
            code = main(sys.argv[1:])
            if sys.stdout:  # None: the program was started with it closed
                sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            # Of files the programs say more: this is what they are printed to, a full disk.
            code = 1
            print(f"{program}: error: {error}", file=sys.stderr)
        except HvdExtError as error:
            code = error.exit_code
            print(f"{program}: error: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            code = 130
            print(f"{program}: interrupted", file=sys.stderr)
    sys.exit(code)


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """What is written within ends, without an error, when its reader closed the pipe."""
    try:
        yield
    except BrokenPipeError:
        pass
    except SystemExit as left:
        # rich's Console exits with 1 on a closed pipe.
        if not isinstance(left.__context__, BrokenPipeError):
            raise
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except OSError:
                # The interpreter would complain at exit of what is still buffered.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
