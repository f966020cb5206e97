"""Damage to files, the same for a seed on every machine.

`make fuzz` sets HVD_EXT_TEST_FUZZ to the number of cases of each subject; `make test` runs a few.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

from hvd_ext.errors import UsageError

CASES = int(os.environ.get("HVD_EXT_TEST_FUZZ", "20"))


def damaged(content: bytes, seed: int) -> bytes:
    """The content with one to four edits: bits flipped, parts cut, repeated, zeroed or moved."""
    rng = random.Random(seed)
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((1, 2, 4, 8, 64, 1024)))
        edit = rng.choice(("flip", "cut", "repeat", "zero", "ones", "end", "noise"))
        if edit == "flip" and data:
            data[min(start, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif edit == "cut":
            del data[start:end]
        elif edit == "repeat":
            data[start:start] = data[start:end]
        elif edit == "zero":
            data[start:end] = bytes(end - start)
        elif edit == "ones":
            data[start:end] = b"\xff" * (end - start)
        elif edit == "end":
            del data[start:]
        elif edit == "noise":
            data[start:end] = rng.randbytes(end - start)
    return bytes(data)


def refusal(command: Callable[[], int], seconds: int = 60) -> str | None:
    """What a command says that refuses its input; None where it succeeds.

    Raises:
        TimeoutError: it is still running after so many seconds.
    """

    def late(*_: object) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        command()
    except UsageError as error:
        return str(error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return None
