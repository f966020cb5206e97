"""Has a job take a turn, after which it is stopped; prints its processes, and stays."""

from __future__ import annotations

import os
import sys
import time

from hvd_ext.system.process import descendants
from testbed import ranks, turns

with turns.job("stopped", sys.argv[1:], ranks.environment(), size=1) as job:
    job.turn("work")
    print(*descendants(os.getpid()), flush=True)
    time.sleep(600)
