"""Prints whether Open MPI gives its core away while it waits, once hvd_ext has started it.

Rank 0 has OMPI_MCA_mpi_yield_when_idle not set, the others have it set to 0.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import hvd_ext.torch as hvd

NAME = "OMPI_MCA_mpi_yield_when_idle"
os.environ.pop(NAME, None)
if os.environ.get("OMPI_COMM_WORLD_RANK", "0") != "0":
    os.environ[NAME] = "0"
hvd.init()
library = re.search(r"\S+/libopen-pal\.so\S*", Path("/proc/self/maps").read_text())
if library is None:
    print("no Open MPI")
else:
    yields = ctypes.c_bool.in_dll(ctypes.CDLL(library.group()), "opal_progress_yield_when_idle")
    print(f"rank {hvd.rank()} {'yields' if yields.value else 'spins'}")
hvd.shutdown()
