"""PyTorch calls this at the end of its import, and a recorded process watches its collectives.

It is an entry point of `torch.backends`, as a recording needs no change to the program.
"""

from __future__ import annotations

import os
import sys

from hvd_ext.variables import HVPROF_GPU

# Set for what `hvprof record` starts.
FOLDER = "HVPROF_DIR"


def at_import_of_torch() -> None:
    """Have a recorder see torch.distributed and Horovod; do nothing where none records."""
    if not os.environ.get(FOLDER):
        return
    try:
        from hvd_ext.c10d.watch import watch
        from hvd_ext.horovod_waits import watch_horovod

        watch_horovod()
        watch()
        if steps := HVPROF_GPU.read():
            from hvd_ext.c10d.profiled import profile_steps

            profile_steps(*steps)
    except Exception as error:  # the program has not asked for this: it runs on without
        print(f"hvprof: torch.distributed is not recorded: {error}", file=sys.stderr)
