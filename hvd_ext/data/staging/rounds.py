"""The plan of staging: the node that reads each piece, and its round; pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NO_PIECE = -1
NO_READER = -1


def readers(needs: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Assign each piece to the member that needs it and reads the fewest pieces so far.

    Args:
        needs: (members, pieces), whether a member needs a piece.

    Returns:
        (pieces,): the member that reads it, or NO_READER if no member needs it.
    """
    found = np.full(needs.shape[1], NO_READER)
    reads = [0] * len(needs)
    for piece in np.flatnonzero(needs.any(axis=0)):
        found[piece] = min(np.flatnonzero(needs[:, piece]), key=reads.__getitem__)
        reads[found[piece]] += 1
    return found


def reading_rounds(lacks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Choose the piece that each node reads in each round, so that all nodes get all pieces.

    Args:
        lacks: (nodes, pieces), whether a node lacks a piece.

    Returns:
        (rounds, nodes): a piece, or NO_PIECE; a node's pieces come in the order of the file.
    """
    by = readers(lacks)
    read = [np.flatnonzero(by == node) for node in range(len(lacks))]
    rounds = np.full((max(map(len, read), default=0), len(read)), NO_PIECE)
    for node, pieces in enumerate(read):
        rounds[: len(pieces), node] = pieces
    return rounds
