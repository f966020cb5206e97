"""MVAPICH 3 and 4: MPICH with control variables under a separate prefix."""

from __future__ import annotations

from hvd_ext.system.mpi_libraries import Version
from hvd_launch.backends.mpich import Mpich


class Mvapich(Mpich):
    """MVAPICH 3 and 4."""

    name = "mvapich"
    assumed_version = (4, 0)
    tested = False
    # A rank cannot distinguish it from MPICH, which has the same.
    rank_variables = None
    exported = "MVP_.*"
    version_command = ("mpiname", "-a")
    prefix = "MVP_"
    source = "MPICH's CVARs, which MVAPICH 4.0's source also has under MVP_; not run"

    def recognise_mpirun(self, text: str) -> Version | None:
        return None
