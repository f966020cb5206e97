"""Who sends to whom, as the recorder counts it in a real job."""

from __future__ import annotations

from pathlib import Path

from hvprof.analysis.waiting.partners import partners
from tests.support.hvprof.recorded import record_code

# Rank r sends r + 1 messages of 80 bytes to each rank after it.
SENDS = """
import numpy as np
from mpi4py import MPI
world, sent = MPI.COMM_WORLD, np.zeros(10)
for sender in range(world.size):
    for receiver in range(sender + 1, world.size):
        for _ in range(sender + 1):
            if world.rank == sender:
                world.Send(sent, receiver)
            elif world.rank == receiver:
                world.Recv(sent, sender)
"""


def test_the_matrix_is_what_the_program_sends(tmp_path: Path) -> None:
    found = partners(record_code(tmp_path / "run", 4, SENDS))
    assert found is not None
    pairs = [(sender, receiver) for sender in range(4) for receiver in range(sender + 1, 4)]
    assert found.sent == {(s, r): (s + 1, 80 * (s + 1)) for s, r in pairs}
    assert found.unknown == (0, 0)
    assert {(one.rank, one.partner) for one in found.waits if one.direction == "from"} == {
        (receiver, sender) for sender, receiver in pairs
    }
