"""Train EDSR, each rank with features of its own: `features_by_rank.py N,M FLAGS...`."""

from __future__ import annotations

import sys

from mpi4py import MPI

from edsr import train
from hvd_ext.cli import run

features = sys.argv.pop(1).split(",")[MPI.COMM_WORLD.rank]
sys.argv += ["--features", features]
run(train.main, train.PROGRAM)
