"""Which carrier is faster for gradients on GPUs, by measurement.

Each carrier's sums are checked before they are timed. A table's row for device memory counts if
NCCL's sums are right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce.rows import make_row
from hvd_ext.allreduce.table import NCCL, Row, Table, usual_carrier
from hvd_ext.arena.cuda import nccl
from hvd_ext.arena.cuda.arena import DeviceArena, carried_by
from hvd_ext.arena.cuda.ipc import or_window_error
from hvd_ext.arena.cuda.self_check import prove
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.compression.formats import NONE
from hvd_ext.errors import HvdExtError
from hvd_ext.events import tuning
from hvd_ext.units import MIB

if TYPE_CHECKING:
    from hvd_ext.arena.config import ArenaConfig

# At the first arena: enough to find a carrier that is far slower, in a fraction of a second.
COARSE_BYTES, COARSE_ROUNDS = (4 << 10, 256 << 10, 4 * MIB, 16 * MIB), 5
_CHECKED_ROUNDS = 10
_OCCASION = "the measurement of carriers on GPUs"
# Rows that were measured before, by device and ranks.
_rows: dict[tuple[int, tuple[int, ...]], Row | None] = {}
log = logging.getLogger("hvd_ext")


@tuning()  # none of this is the program's data
def prepare(config: ArenaConfig, device: int, current_stream: Callable[[], int]) -> ArenaConfig:
    """Check these ranks' GPUs and NCCL before their first use; collective.

    Args:
        config: how arenas exchange.
        device: ordinal of this rank's GPU in this process.
        current_stream: see DeviceArena.

    Returns:
        The same, whose table has a row for device memory where it had none and NCCL was compared.

    Raises:
        WindowError: on every rank, if sums are wrong on one, or there can be no arena.
    """
    topology, timeout_s = config.topology, config.timeout_s
    prove(config, device, current_stream)
    key = (device, tuple(topology.ranks))
    if topology.world.size == 1:
        return config
    situation = (topology.nodes, topology.node.size, "device", "float")
    rows = [row for row in config.table.rows if row.matches(*situation)]
    if rows and NCCL not in dict(rows[0].choices).values():
        return config
    if not all(topology.allgather(key in _rows, timeout_s, _OCCASION)):
        _rows[key] = None
        if nccl.communicator(topology, device, timeout_s) is not None:
            given = config, device, current_stream
            try:
                for message_bytes in COARSE_BYTES:
                    _check(*given, NCCL, message_bytes, _CHECKED_ROUNDS)
            except HvdExtError as wrong:  # on every rank alike
                nccl.refuse(topology, device, str(wrong))
                if topology.world.rank == 0:
                    log.warning("hvd_ext: gradients on GPUs do not use NCCL: %s", wrong)
            else:
                _rows[key] = None if rows else measure(*given, COARSE_BYTES, COARSE_ROUNDS)
    row = _rows[key]
    if row is None:
        return config
    source = f"{config.table.source} and a measurement before the first step"
    return replace(config, table=Table((row, *config.table.rows), source))


def measure(
    config: ArenaConfig,
    device: int,
    current_stream: Callable[[], int],
    sizes: Sequence[int],
    rounds: int,
    done: Callable[[str], None] = lambda what: None,
) -> Row:
    """Time every carrier at some sizes, interleaved; the same row on every rank; collective.

    Args:
        config: as `prepare`, and so on.
        device: likewise.
        current_stream: likewise.
        sizes: message_bytes, ascending.
        rounds: samples of each carrier.
        done: called with each size.

    Raises:
        WindowError: on every rank, if there can be no arena.
        HvdExtError: on every rank, if a carrier gave a wrong sum.
    """
    samples: dict[int, dict[str, list[float]]] = {}
    topology, timeout_s = config.topology, config.timeout_s
    given = config, device, current_stream
    names = [usual := usual_carrier(topology.nodes)]
    if nccl.communicator(topology, device, timeout_s) is not None:
        names.append(NCCL)
    for message_bytes in sizes:
        for name in names:
            _check(*given, name, message_bytes)
        arenas = {name: _arena(*given, name, message_bytes) for name in names}
        found: dict[str, list[float]] = {name: [] for name in arenas}
        with tuning():
            for number in range(rounds + 1):
                for name, arena in arenas.items():
                    took_s = _sample_s(config, arena)
                    if number:  # the first one starts things
                        found[name].append(took_s)
            for arena in arenas.values():
                arena.close()
        samples[message_bytes] = found
        done(f"{message_bytes} B")
    return make_row(topology.nodes, topology.node.size, "device", "float", samples, usual)


def _arena(
    config: ArenaConfig,
    device: int,
    current_stream: Callable[[], int],
    name: str,
    message_bytes: int,
) -> DeviceArena:
    """Make an arena of one bucket, with one carrier."""
    specs = [ParameterSpec("a", (message_bytes // 4,), (1,), "float32")]
    layout, scale = layout_by_size(specs, message_bytes), 1 / config.topology.world.size
    by_one = replace(config, table=carried_by(name), format=NONE)
    return DeviceArena(by_one, layout, scale, device, current_stream)


def _exchange(arena: DeviceArena) -> None:
    arena.ready(0)
    arena.reduce(0)
    arena.finish()


def _sample_s(config: ArenaConfig, arena: DeviceArena) -> float:
    """Time an exchange until the last rank's GPU has the result; the same time on every rank."""
    topology, timeout_s = config.topology, config.timeout_s
    arena.synchronize()
    topology.allgather(0, timeout_s, _OCCASION)
    start_s = time.perf_counter()
    _exchange(arena)
    arena.synchronize()
    return max(topology.allgather(time.perf_counter() - start_s, timeout_s, _OCCASION))


def _check(
    config: ArenaConfig,
    device: int,
    current_stream: Callable[[], int],
    name: str,
    message_bytes: int,
    rounds: int = 1,
) -> None:
    """Check a carrier's sums, over several rounds that are queued at once; collective.

    The numbers are small and whole, so every order of summing gives the same.

    Raises:
        HvdExtError: on every rank, if one is wrong.
    """
    topology = config.topology
    rank, size = topology.world.rank, topology.world.size
    arena = _arena(config, device, current_stream, name, message_bytes)
    count = message_bytes // 4
    values = np.arange(count, dtype=np.float32) % 5
    with or_window_error(f"a measurement on GPU {device}"):
        import cupy

        runtime: Any = cupy.cuda.runtime
        address, stream = arena.data.data.ptr, current_stream()
        with cupy.cuda.Device(device):
            memory: Any = cupy.cuda.alloc_pinned_memory(rounds * 4 * count)
            found = np.frombuffer(memory, np.float32, rounds * count).reshape(rounds, count)
            for number, host in enumerate(found):
                host[:] = values + rank % 3 + number
            for host in found:
                kind = runtime.memcpyHostToDevice
                runtime.memcpyAsync(address, host.ctypes.data, host.nbytes, kind, stream)
                _exchange(arena)
                kind = runtime.memcpyDeviceToHost
                runtime.memcpyAsync(host.ctypes.data, address, host.nbytes, kind, stream)
            runtime.streamSynchronize(stream)
    arena.close()
    total = values * size + sum(other % 3 for other in range(size))
    right = all(
        np.array_equal(host, (total + number * size) * np.float32(1 / size))
        for number, host in enumerate(found)
    )
    said = topology.allgather(right, config.timeout_s, _OCCASION)
    if wrong := [rank for rank, good in zip(topology.ranks, said, strict=True) if not good]:
        raise HvdExtError(
            f"{name} gave wrong sums of {count} float32 on GPUs of ranks {wrong}: report it with "
            "the versions of CUDA and NCCL"
        )
