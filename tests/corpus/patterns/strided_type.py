"""Every eighth element of an array is sent by a type with gaps, which MPI packs one by one."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
COUNT, STRIDE = 1 << 20, 8
column = MPI.DOUBLE.Create_vector(COUNT, 1, STRIDE).Commit()
field, halo = np.zeros(COUNT * STRIDE), np.zeros(COUNT * STRIDE)
other = 1 - comm.rank
for _ in range(30):
    time.sleep(0.01)
    comm.Sendrecv([field, 1, column], other, recvbuf=[halo, 1, column], source=other)
column.Free()
