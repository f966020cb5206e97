"""Train EDSR several times in one job: `trains_in_turn.py FLAGS... --then FLAGS...`.

In place of flags, `cut FROM TO` copies a training's folder, as of its fourth step.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from mpi4py import MPI

from edsr import train

for flags in " ".join(sys.argv[1:]).split("--then"):
    words = flags.split()
    if words[0] != "cut":
        train.main(words)
    elif MPI.COMM_WORLD.rank == 0:
        cut = Path(shutil.copytree(words[1], words[2]))
        (cut / "checkpoint-4.pt").rename(cut / "checkpoint.pt")
    MPI.COMM_WORLD.Barrier()
