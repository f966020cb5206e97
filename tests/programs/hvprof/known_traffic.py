"""Communicates in every way that hvprof counts, by amounts that test_traffic.py knows."""

from __future__ import annotations

import threading

import numpy as np
from mpi4py import MPI

EDGES = [0, 1, 2, 3, 1023, 1024, 1025, 2**17, 2**17 + 1, 2**24, 2**24 + 1]
THREADS, CALLS_PER_THREAD = 3, 200


def reductions(comm: MPI.Comm) -> None:
    size = comm.size
    eight = np.ones(2, np.int32)
    for count in EDGES:
        buffer = np.ones(count, np.uint8)
        comm.Allreduce(MPI.IN_PLACE, [buffer, MPI.UNSIGNED_CHAR], MPI.MAX)
    pair = MPI.FLOAT.Create_contiguous(2).Commit()
    keep = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    comm.Allreduce([np.ones(20, np.float32), 10, pair], [np.ones(20, np.float32), 10, pair], keep)
    keep.Free()
    pair.Free()
    comm.Reduce(eight, np.empty(2, np.int32) if comm.rank == 0 else None)
    comm.Scan(eight, np.empty(2, np.int32))
    comm.Exscan(eight, np.empty(2, np.int32))
    comm.Reduce_scatter_block(np.ones(2 * size, np.int32), eight)
    counts = [2] + [1] * (size - 1)
    comm.Reduce_scatter(np.ones(size + 1, np.int32), np.ones(counts[comm.rank], np.int32), counts)
    comm.Iallreduce(MPI.IN_PLACE, eight).Wait()
    # What Horovod's controller sends is data where it is not Horovod that sends it.
    comm.Allreduce(MPI.IN_PLACE, [np.ones(1, np.int64), MPI.LONG_LONG], MPI.BAND)


def movements(comm: MPI.Comm) -> None:
    rank, size = comm.rank, comm.size
    one, all_of = np.ones(3, np.float64), np.ones(3 * size, np.float64)
    comm.Bcast(one)
    comm.Allgather(one, all_of)
    comm.Allgather(MPI.IN_PLACE, all_of)
    comm.Allgatherv(one, [all_of, [3] * size])
    comm.Gather(MPI.IN_PLACE if rank == 0 else one, all_of if rank == 0 else None)
    comm.Gatherv(MPI.IN_PLACE if rank == 0 else one, [all_of, [3] * size] if rank == 0 else None)
    comm.Scatter(all_of if rank == 0 else None, MPI.IN_PLACE if rank == 0 else one)
    comm.Scatterv([all_of, [3] * size] if rank == 0 else None, one)
    comm.Alltoall(all_of, all_of.copy())
    comm.Alltoallv([all_of, [3] * size], [all_of.copy(), [3] * size])
    comm.Alltoallv(MPI.IN_PLACE, [all_of, [3] * size])
    comm.Ibcast(one).Wait()
    comm.Barrier()
    comm.Ibarrier().Wait()


def messages(comm: MPI.Comm) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    sent, received = np.ones(5, np.int16), np.empty(5, np.int16)
    comm.Sendrecv(sent, right, recvbuf=received, source=left)
    request = comm.Irecv(received, left)
    comm.Send(sent, right)
    request.Wait()
    request = comm.Isend(sent, right)
    comm.Recv(received, left)
    request.Wait()


def at_once(comm: MPI.Comm) -> None:
    def work(own: MPI.Comm) -> None:
        buffer = np.ones(4, np.float32)
        for _ in range(CALLS_PER_THREAD):
            own.Allreduce(MPI.IN_PLACE, buffer)

    comms = [comm.Dup() for _ in range(THREADS)]
    threads = [threading.Thread(target=work, args=[own]) for own in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own in comms:
        own.Free()


if __name__ == "__main__":
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    for part in (reductions, movements, messages, at_once):
        part(MPI.COMM_WORLD)
