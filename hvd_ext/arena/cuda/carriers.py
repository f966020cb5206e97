"""Which carrier is faster for gradients on GPUs, by measurement.

Each carrier's sums are checked before they are timed. A table's row for device memory counts where
the sums of what it names are right, and for MPI also where a job under this library measured it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce.agreed import library
from hvd_ext.allreduce.carrier_names import (
    MPI,
    NCCL,
    PAIRWISE,
    STAGED,
    carriers_of,
    in_any_order,
    is_pairwise,
    usual_carrier,
)
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
    from hvd_ext.job.topology import Topology

# At the first arena: enough to find a carrier that is far slower, in a fraction of a second.
COARSE_BYTES, COARSE_ROUNDS = (4 << 10, 256 << 10, 4 * MIB, 16 * MIB), 5
_CHECKED_ROUNDS = 10
_OCCASION = "the measurement of carriers on GPUs"
_WITHOUT = {
    PAIRWISE: "go to all peers of a node at once",
    NCCL: "do not use NCCL",
    MPI: "are not given to MPI as they are",
}
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
        The same; its table begins with a row for device memory where it had none and there were
        carriers to compare, or where its row names one that is not to be used.

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
    if own is not None and {name for _, name in own.choices} == {usual_carrier(topology.nodes)}:
        return config
    if not all(topology.allgather(key in _rows, timeout_s, _OCCASION)):
        _rows[key] = None
        given = config, device, current_stream
        _rows[key] = _measured(*given) if own is None else _checked(*given, own)
    if (found := _rows[key]) is None:
        return config
    row, source = found
    return replace(config, table=Table((row, *config.table.rows), f"{config.table.source}{source}"))


def _measured(
    config: ArenaConfig, device: int, current_stream: Callable[[], int]
) -> tuple[Row, str] | None:
    """Compare the carriers whose sums are right; a row, and where it comes from; collective."""
    given = config, device, current_stream
    names = candidates(config.topology, device, config.timeout_s)
    wrong = _wrong_parts(*given, names)
    names = [name for name in names if not any(part in name for part in wrong)]
    if len(names) == 1:
        return None
    row = measure(*given, names, COARSE_BYTES, COARSE_ROUNDS)
    return row, " and a measurement before the first step"


def _checked(
    config: ArenaConfig, device: int, current_stream: Callable[[], int], row: Row
) -> tuple[Row, str] | None:
    """A row without what is wrong in it, and where it comes from; None if all is right; collective.

    A pairwise exchange that was measured may replace a carrier that cannot serve a bucket.
    """
    offered = carriers_of(config.topology.nodes)
    replacing = usual_carrier(config.topology.nodes) + PAIRWISE
    measured = {name for _, us in row.measured_us for name in us}
    names = {name for _, name in row.choices} | (measured & {replacing})
    wrong = _wrong_parts(config, device, current_stream, sorted(names & offered.keys()), row)
    if not wrong:
        return None
    said = "".join(f", without {part.lstrip('_')}: {why}" for part, why in wrong.items())
    return _without(row, wrong), said


def _wrong_parts(
    config: ArenaConfig,
    device: int,
    current_stream: Callable[[], int],
    names: Sequence[str],
    row: Row | None = None,
) -> dict[str, str]:
    """Say what is not to be used, PAIRWISE, NCCL or MPI, and why; collective.

    Args:
        config: as `prepare`.
        device: likewise.
        current_stream: likewise.
        names: carriers that may be used.
        row: the one that names them, if there is one.
    """
    topology, given = config.topology, (config, device, current_stream)
    named = {in_any_order(name) for name in names}
    found: dict[str, str] = {}
    if any(map(is_pairwise, names)):
        found[PAIRWISE] = _wrong(*given, usual_carrier(topology.nodes) + PAIRWISE)
    if NCCL in named and nccl.communicator(topology, device, config.timeout_s) is not None:
        found[NCCL] = _wrong(*given, NCCL)
        if found[NCCL]:
            nccl.refuse(topology, device, found[NCCL])
    if MPI in named and row is not None:
        found[MPI] = _unknown(row) or _wrong(*given, MPI)
    wrong = {part: why for part, why in found.items() if why}
    for part, why in wrong.items():
        if topology.world.rank == 0:
            log.warning("hvd_ext: gradients on GPUs %s: %s", _WITHOUT[part], why)
    return wrong


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


def _without(row: Row, wrong: Collection[str]) -> Row:
    """The row with the usual order of peers, or pinned memory, in place of what is wrong.

    NCCL is replaced by each arena, as it then has no communicator.
    """

    def other(name: str) -> str:
        by = in_any_order(name)
        order = "" if PAIRWISE in wrong else name[len(by) :]
        return (STAGED if by == MPI and MPI in wrong else by) + order

    measured = tuple(
        (size, {name: times for name, times in us.items() if name == other(name)})
        for size, us in row.measured_us
    )
    choices = tuple((least, other(name)) for least, name in row.choices)
    return replace(row, choices=choices, measured_us=measured)


def candidates(
    topology: Topology, device: int, timeout_s: float, with_mpi: bool = False
) -> list[str]:
    """Return the carriers to compare, the usual one first; collective.

    Between two ranks of a node, one stream goes each way in any order.

    Args:
        topology: the ranks.
        device: ordinal of this rank's GPU in this process.
        timeout_s: limit of the wait for other ranks.
        with_mpi: whether MPI is given device memory, which may crash; between nodes only.
    """
    names = [usual_carrier(topology.nodes)]
    if nccl.communicator(topology, device, timeout_s) is not None:
        names.append(NCCL)
    if with_mpi:
        names.append(MPI)
    if topology.node.size > 2:
        names += [name + PAIRWISE for name in names]
    return [name for name in names if name in carriers_of(topology.nodes)]


def measure(
    config: ArenaConfig,
    device: int,
    current_stream: Callable[[], int],
    names: Sequence[str],
    sizes: Sequence[int],
    rounds: int,
    done: Callable[[str], None] = lambda what: None,
) -> Row:
    """Time carriers at some sizes, interleaved; the same row on every rank; collective.

    Args:
        config: as `prepare`, and so on.
        device: likewise.
        current_stream: likewise.
        names: carriers, as `candidates` returns them.
        sizes: message_bytes, ascending.
        rounds: samples of each carrier.
        done: called with each size.

    Raises:
        WindowError: on every rank, if there can be no arena.
        HvdExtError: on every rank, if a carrier gave a wrong sum.
    """
    samples: dict[int, dict[str, list[float]]] = {}
    topology = config.topology
    given = config, device, current_stream
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
    row = make_row(*situation, samples, names[0])
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
