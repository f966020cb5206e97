"""Prints whether Open MPI gives its core away while it waits, once hvd_ext has started it.

Argument: what the user set OMPI_MCA_mpi_yield_when_idle to; nothing if it is not set.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

import hvd_ext.torch as hvd

NAME = "OMPI_MCA_mpi_yield_when_idle"
os.environ.pop(NAME, None)
if sys.argv[1:]:
    os.environ[NAME] = sys.argv[1]
hvd.init()
library = re.search(r"\S+/libopen-pal\.so\S*", Path("/proc/self/maps").read_text())
if library is None:
    print("no Open MPI")
else:
    yields = ctypes.c_bool.in_dll(ctypes.CDLL(library.group()), "opal_progress_yield_when_idle")
    print("yields" if yields.value else "spins")
hvd.shutdown()
