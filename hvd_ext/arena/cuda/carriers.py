"""Which carrier is faster for gradients on GPUs, by measurement.

Each carrier's sums are checked before they are timed. A table's row for device memory counts where
the sums of what it names are right, and for MPI also where a job under this library measured it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce.agreed import library
from hvd_ext.allreduce.carrier_names import MPI, NCCL, STAGED, usual_carrier
from hvd_ext.allreduce.rows import make_row
from hvd_ext.allreduce.table import ANY_DTYPE, Row, Table
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
# Rows that were made before, by device and ranks, and where they come from.
_rows: dict[tuple[int, tuple[int, ...]], tuple[Row, str] | None] = {}
log = logging.getLogger("hvd_ext")


@tuning()  # none of this is the program's data
def prepare(config: ArenaConfig, device: int, current_stream: Callable[[], int]) -> ArenaConfig:
    """Check these ranks' GPUs and carriers before they are used first; collective.

    MPI is not measured here, as a library that takes no device memory may crash.

    Args:
        config: how arenas exchange.
        device: ordinal of this rank's GPU in this process.
        current_stream: see DeviceArena.

    Returns:
        The same; its table begins with a row for device memory where it had none and NCCL was
        compared, or where its row names MPI, which is not to be used.

    Raises:
        WindowError: on every rank, if sums are wrong on one, or there can be no arena.
    """
    topology, timeout_s = config.topology, config.timeout_s
    prove(config, device, current_stream)
    key = (device, tuple(topology.ranks))
    if topology.world.size == 1:
        return config
    situation = (topology.nodes, topology.node.size, "device", "float")
    own = next((row for row in config.table.rows if row.matches(*situation)), None)
    named = {NCCL} if own is None else {name for _, name in own.choices}
    if not named & {NCCL, MPI}:
        return config
    if not all(topology.allgather(key in _rows, timeout_s, _OCCASION)):
        _rows[key] = None
        given = config, device, current_stream
        if NCCL in named and nccl.communicator(topology, device, timeout_s) is not None:
            if wrong := _wrong(*given, NCCL):
                nccl.refuse(topology, device, wrong)
                _warn(config, f"gradients on GPUs do not use NCCL: {wrong}")
            elif own is None:
                row = measure(*given, COARSE_BYTES, COARSE_ROUNDS)
                _rows[key] = row, " and a measurement before the first step"
        if own is not None and MPI in named and not topology.one_node:
            wrong = _unknown(own) or _wrong(*given, MPI)
            if wrong:
                _warn(config, f"gradients on GPUs are not given to MPI as they are: {wrong}")
                _rows[key] = _without_mpi(own), f", without {MPI}: {wrong}"
    if (found := _rows[key]) is None:
        return config
    row, source = found
    return replace(config, table=Table((row, *config.table.rows), f"{config.table.source}{source}"))


def _wrong(config: ArenaConfig, device: int, current_stream: Callable[[], int], name: str) -> str:
    """Say what is wrong with a carrier's sums, the same on every rank, or nothing; collective."""
    try:
        for message_bytes in COARSE_BYTES:
            _check(config, device, current_stream, name, message_bytes, _CHECKED_ROUNDS)
    except HvdExtError as wrong:  # on every rank alike
        return str(wrong)
    return ""


def _unknown(row: Row) -> str:
    """Why a row's measurement of MPI says nothing of this job's library; empty if it does."""
    if row.library == library():
        return ""
    other = f"under {row.library.split(',')[0]}" if row.library else "under no MPI library"
    return f"the row was measured {other}: hvd-launch tune allreduce --memory device"


def _without_mpi(row: Row) -> Row:
    choices = tuple((least, STAGED if name == MPI else name) for least, name in row.choices)
    return replace(row, choices=choices)


def _warn(config: ArenaConfig, text: str) -> None:
    if config.topology.world.rank == 0:
        log.warning("hvd_ext: %s", text)


def measure(
    config: ArenaConfig,
    device: int,
    current_stream: Callable[[], int],
    sizes: Sequence[int],
    rounds: int,
    with_mpi: bool = False,
    done: Callable[[str], None] = lambda what: None,
) -> Row:
    """Time every carrier at some sizes, interleaved; the same row on every rank; collective.

    Args:
        config: as `prepare`, and so on.
        device: likewise.
        current_stream: likewise.
        sizes: message_bytes, ascending.
        rounds: samples of each carrier.
        with_mpi: whether MPI is given device memory, which may crash; between nodes only.
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
    if with_mpi and not topology.one_node:
        names.append(MPI)
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
    situation = topology.nodes, topology.node.size, "device", ANY_DTYPE
    row = make_row(*situation, samples, usual)
    return replace(row, library=library()) if MPI in names else row


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
            "the versions of CUDA, NCCL and MPI"
        )
