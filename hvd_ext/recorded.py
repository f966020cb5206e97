"""PyTorch calls this at the end of its import, and a recorded process watches its collectives.

It is an entry point of `torch.backends`, so a recording needs no change to the program.
"""

from __future__ import annotations

import sys

from hvd_ext.variables import HVPROF_DIR, HVPROF_GPU


def at_import_of_torch() -> None:
    """Show torch.distributed and Horovod to the recorder; do nothing without one."""
    if not HVPROF_DIR.read():
        return
    try:
        from hvd_ext.c10d.watch import watch
        from hvd_ext.horovod_waits import watch_horovod

        watch_horovod()
        watch()
        if steps := HVPROF_GPU.read():
            from hvd_ext.c10d.profiled import profile_steps

            profile_steps(*steps)
    except Exception as error:  # the program has not requested this, so it continues without
        print(f"hvprof: torch.distributed is not recorded: {error}", file=sys.stderr)
