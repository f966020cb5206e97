"""`hvd_ext.arena.cuda.mpi_probe` on the stand-in for CuPy, with one of MISHAPS, without NCCL."""

from __future__ import annotations

import sys

from hvd_ext.arena.cuda import mpi_probe
from hvd_ext.arena.cuda.by_mpi import DeviceShard
from testbed import cuda_stand_in
from tests.support.arena.mpi_mishaps import MISHAPS

cuda_stand_in.install()
mpi_probe.SIZES = (8 << 10, 64 << 10)
DeviceShard.outgoing = MISHAPS[sys.argv[1]]
mpi_probe.main()
