"""Every error a user can meet; hvd_ext.cli.run turns them into exit codes."""

from __future__ import annotations

from collections.abc import Sequence


class HvdExtError(RuntimeError):
    """Base of hvd_ext's errors; the message says how to fix the cause.

    The message quotes the value, the rule it breaks, and what to do, in one line. It is a
    RuntimeError, as the errors of torch.distributed and Horovod are.
    """

    exit_code = 1


class UsageError(HvdExtError):
    """An invalid request: a flag, a path, a file or an argument."""

    exit_code = 2


class NotInstalledError(HvdExtError, ImportError):
    """A package that hvd_ext needs is not installed; the message says how to get it."""


class StallError(HvdExtError):
    """Ranks did not arrive at an exchange in time; the message names them.

    Attributes:
        ranks: their numbers in the world, if these are known.
    """

    exit_code = 75

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        """Store the message and the missing ranks.

        Args:
            message: text that names the ranks.
            ranks: the ranks that it names.
        """
        super().__init__(message)
        self.ranks = tuple(ranks)


class MismatchError(HvdExtError):
    """Ranks disagree on something that shapes communication; the message says on what."""

    exit_code = 76
