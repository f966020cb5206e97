"""A job of testbed.turns with a thread that never rests; its answers say when that ran."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from testbed.turns import take_turns

awake_s: list[float] = []


def never_rest() -> None:
    while True:
        time.sleep(0.001)
        awake_s.append(time.monotonic())


def answer(task: Any) -> list[float]:
    if task == "fail":
        raise ValueError("this rank was told to fail\nwith a second line")
    if task == "die":
        print("last words", flush=True)
        sys.exit(3)
    began_s = time.monotonic()
    time.sleep(0.1)
    return [began_s, time.monotonic(), *awake_s]


threading.Thread(target=never_rest, daemon=True).start()
take_turns(lambda: answer)
