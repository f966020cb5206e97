"""An MPI library that does not take device memory, as the stand-in's would be taken by any."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np

from hvd_ext.allreduce.operations import Array
from hvd_ext.arena.cuda.by_mpi import DeviceShard

_sent = DeviceShard.outgoing


def _crash(shard: DeviceShard, piece: int, rank: int) -> Array:
    os.kill(os.getpid(), signal.SIGKILL)  # a library that looks into it gets SIGSEGV
    return _sent(shard, piece, rank)


def _hang(shard: DeviceShard, piece: int, rank: int) -> Array:
    threading.Event().wait()
    return _sent(shard, piece, rank)


def _wrong(shard: DeviceShard, piece: int, rank: int) -> Array:
    return np.zeros_like(_sent(shard, piece, rank))


MISHAPS = {"right": _sent, "crash": _crash, "hang": _hang, "wrong": _wrong}
