"""A trace holds what an algorithm does among real ranks: bytes, partners and order."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_ext.allreduce.algorithms import ALGORITHMS, NATIVE, implementation
from hvd_ext.allreduce.operations import OPERATIONS, Operation
from hvd_launch.simulate import trace
from tests.ranks.asserts import parallel_assert

EAGER_BYTES = 4096
# Fewer elements than ranks, uneven chunks, messages on either side of EAGER_BYTES, segments.
COUNTS = (1, 5, 3001, 70_001)


class RecordedRequest:
    """A real request; it is written down when it is done."""

    def __init__(self, request, record, line):
        self._request, self._record, self._line = request, record, line

    def Test(self):
        done = self._request.Test()
        if done:
            self._record(self._line)
        return done

    def Wait(self):
        self._request.Wait()
        self._record(self._line)


class Recorded:
    """A real communicator that writes down what is asked of it."""

    def __init__(self, comm):
        self.rank, self.size = comm.rank, comm.size
        self.lines = []
        self._comm = comm

    def _record(self, line):
        if line:
            self.lines.append(f"{self.rank} {line}\n")

    def Isend(self, buffer, dest, tag):
        eager = buffer.nbytes < EAGER_BYTES
        self._record(f"{'send' if eager else 'isend'} {dest} {tag} {buffer.nbytes}")
        line = "" if eager else f"wait {self.rank} {dest} {tag}"
        return RecordedRequest(self._comm.Isend(buffer, dest, tag), self._record, line)

    def Irecv(self, buffer, source, tag):
        self._record(f"irecv {source} {tag} {buffer.nbytes}")
        line = f"wait {source} {self.rank} {tag}"
        return RecordedRequest(self._comm.Irecv(buffer, source, tag), self._record, line)

    def Sendrecv(self, outgoing, dest, tag, incoming, source, theirs):
        """As MPI defines it: both at once, and both are done."""
        requests = [self.Irecv(incoming, source, theirs), self.Isend(outgoing, dest, tag)]
        for request in requests:
            request.Wait()

    def operation(self):
        """A sum that is written down."""

        def combine(first, second, out):
            if out.nbytes:
                self._record(f"compute {out.nbytes}")
            return np.add(first, second, out=out)

        return Operation("sum", combine, OPERATIONS["sum"].mpi_name)


@pytest.mark.ranks(5, pytest.param(17, marks=pytest.mark.long))
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != NATIVE])
def test_a_trace_is_what_ranks_do(comm, algorithm):
    differing = []
    for size in range(2, comm.size + 1):
        part = comm.Split(0 if comm.rank < size else 1, comm.rank)
        if comm.rank < size:
            for count in COUNTS:
                recorded = Recorded(part)
                buffer = np.full(count, part.rank, np.float32)
                implementation(algorithm)(recorded, buffer, recorded.operation())
                written = []
                trace.run(algorithm, part.rank, size, 4 * count, EAGER_BYTES, written.append)
                right = np.all(buffer == size * (size - 1) // 2)
                if not right or recorded.lines != written:
                    differing.append((size, count))
        part.Free()
    parallel_assert(comm, not differing, f"{algorithm} differs at {differing}")
