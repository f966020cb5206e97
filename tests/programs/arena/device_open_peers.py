"""`hvd_ext.arena.cuda.open_peers` on the stand-in for CuPy; `closed`: no memory can be opened."""

from __future__ import annotations

import sys

from hvd_ext.arena.cuda.open_peers import main
from testbed import cuda_stand_in
from testbed.cuda_stand_in import memory, runtime
from testbed.cuda_stand_in.errors import CUDARuntimeError

cuda_stand_in.install()
if "closed" in sys.argv:

    def refuse(handle: bytes) -> int:
        raise CUDARuntimeError("cudaErrorMapBufferObjectFailed")

    runtime.ipcOpenMemHandle = memory.open_handle = refuse
main()
