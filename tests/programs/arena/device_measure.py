"""`hvd_ext.arena.cuda.measure` on the stand-ins for CuPy and NCCL."""

from __future__ import annotations

from hvd_ext.arena.cuda import nccl
from hvd_ext.arena.cuda.measure import main
from hvd_ext.cli import run
from testbed import cuda_stand_in
from testbed.cuda_stand_in import nccl as stand_in

cuda_stand_in.install()
nccl._load = lambda: stand_in
run(main, "hvd_ext.arena.cuda.measure")
