"""Writes the file of a rank like the recorder in C, for recordings that are imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hvprof.format.bins import bin_index
from hvprof.format.key import OTHER_PARTNERS, PARTNER, REGION, SOURCES, TRAFFIC, Key, encode
from hvprof.format.layout import (
    BLOCKS,
    CELL,
    COMMUNICATORS,
    FIXED,
    MAGIC,
    MOST_CELLS,
    NAMES,
    STATES,
    STEP_COUNTS,
    STEP_TIMES,
    STEPS,
    VERSION,
)
from hvprof.model import Cell, Partner, RankRecording, Region, Step


def write_rank(directory: Path, rank: RankRecording) -> Path:
    """Write one rank's file into a directory, as `load` reads it back; returns its path."""
    path = rank_path(directory, rank.rank)
    path.write_bytes(encode_rank(rank))
    return path


def rank_path(directory: Path, rank: int) -> Path:
    """Return the path of a rank's file in a recording's folder."""
    return directory / f"rank-{rank:05d}.hvprof"


def encode_rank(rank: RankRecording) -> bytes:
    """Return the file of a rank (times to a nanosecond).

    Args:
        rank: at most 256 names and 127 communicators.

    Raises:
        OverflowError: it has more than 4096 cells and regions, or a number that is negative or
            exceeds the bits of its field.
    """
    fixed = np.zeros(1, FIXED)
    header = fixed[0]["header"]
    names = _Names()
    communicators = _communicators(rank)
    rows = [_cell(cell, names, communicators) for cell in rank.cells]
    rows += [_region(region, names) for region in rank.regions]
    rows += [_partner(partner, names) for partner in rank.partners]
    if len(rows) > MOST_CELLS:
        raise OverflowError(f"{len(rows)} kinds of calls, at most {MOST_CELLS}")
    table = np.array(rows, CELL)
    header["magic"] = np.void(MAGIC)
    header["version"] = VERSION
    header["state"] = STATES.index(rank.state)
    for name in ("rank", "size", "pid", "dropped_calls", "step_count"):
        header[name] = getattr(rank, name)
    for name in ("trace_capacity", "trace_calls", "cores", "host_cores", "knows_queue", "yields"):
        header[name] = getattr(rank, name)
    header["start_unix_ns"] = _ns(rank.start_unix_s)
    header["end_unix_ns"] = _ns(rank.end_unix_s or 0)
    header["start_clock_ns"] = _ns(rank.start_clock_s)
    header["cost_ns"] = rank.recorder_cost_s * 1e9
    header["cells"] = len(rows)
    header["clock"] = rank.clock.encode()
    header["host"] = rank.host.encode()
    header["library"] = rank.mpi_library.encode()
    if rank.usage:
        for name, value in dataclasses.asdict(rank.usage).items():
            of_time = name.endswith("_s")
            place = f"{name.removesuffix('_s')}_ns" if of_time else name
            header["usage"][place] = _ns(value) if of_time else value
    if rank.machine:
        found = rank.machine
        header["machine"]["mhz_sum"] = round(found.ghz_sum * 1e3)
        header["machine"]["quota_millicores"] = round(found.quota_cores * 1e3)
        header["machine"]["tried_ns"] = _ns(found.tried_s)
        header["machine"]["trials_ns2"] = round(found.trials_s2 * 1e18)
        for name in ("looks", "periods", "throttled", "trials"):
            header["machine"][name] = getattr(found, name)
    if rank.registration_cache:
        header["cache_source"] = rank.registration_cache.source.encode()
        header["cache_hits"] = rank.registration_cache.hits
        header["cache_misses"] = rank.registration_cache.misses
    for index, offset in enumerate(rank.clock_offsets):
        header["offsets"][index] = tuple(map(_ns, (offset.at_s, offset.offset_s, offset.error_s)))
    if rank.all_steps:
        header["all_steps"] = _step(rank.all_steps)
    for step in rank.steps:
        fixed[0]["steps"][step.index % STEPS] = _step(step)
    for number, (key, (size, text, ranks, own)) in enumerate(communicators.items()):
        identity = int(key[0], 16) if key[0] else 0
        fixed[0]["communicators"][number] = (identity, size, own, text.encode(), ranks.encode())
    header["communicators"] = len(communicators)
    for number, text in enumerate(names.entered):
        fixed[0]["names"][number] = text.encode()
    return fixed.tobytes() + table.tobytes()


class _Names:
    def __init__(self) -> None:
        self.entered = {"other": 0, "native": 1}

    def __getitem__(self, name: str) -> int:
        number = self.entered.setdefault(name, len(self.entered))
        assert number < NAMES
        return number


_Communicators = dict[tuple[str, int], tuple[int, str, str, int]]


def _communicators(rank: RankRecording) -> _Communicators:
    """Return (size, name, ranks, own rank) by id and size; the first one means none."""
    found: _Communicators = {("", rank.size): (rank.size, "", "", 0)}
    for one in rank.communicators:
        found[one.id, one.size] = (one.size, one.name, one.ranks, one.rank)
    for cell in rank.cells:
        found.setdefault((cell.communicator, cell.size), (cell.size, "", "", 0))
    assert len(found) <= COMMUNICATORS
    return found


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _step(step: Step) -> tuple[int, ...]:
    times_s = (getattr(step, f"{name}_s") or 0.0 for name in STEP_TIMES)
    return (step.index, *map(_ns, times_s), *(getattr(step, name) for name in STEP_COUNTS))


def _row(
    key: Key, cell: Cell | Region, message_bytes: int, wait_ns: int
) -> tuple[int | list[int], ...]:
    blocks = [_ns(time_s) for time_s in cell.blocks_s]
    counts = np.zeros(CELL["histogram"].shape, "<u4")
    for bucket, calls in cell.histogram:
        counts[bucket] = calls
    return (
        encode(key),
        0,
        max(cell.block_calls, 1).bit_length() - 1,
        cell.calls,
        message_bytes,
        _ns(cell.time_s),
        wait_ns,
        *map(_ns, (cell.min_s, cell.max_s)),
        blocks + [0] * (BLOCKS - len(blocks)),
        counts.tolist(),
    )


def _cell(
    cell: Cell, names: _Names, communicators: Iterable[tuple[str, int]]
) -> tuple[int | list[int], ...]:
    key = Key(
        operation=names[cell.operation],
        algorithm=names[cell.algorithm],
        size_bin=bin_index(cell.low_bytes),
        traffic=TRAFFIC.index(cell.traffic),
        source=SOURCES.index(cell.source),
        datatype=names[cell.datatype] if cell.datatype else 0,
        communicator=list(communicators).index((cell.communicator, cell.size)),
    )
    if cell.ended:
        return _row(key, cell, cell.ended_bytes, cell.ended)
    return _row(key, cell, cell.message_bytes, _ns(cell.wait_s or 0.0))


def _region(region: Region, names: _Names) -> tuple[int | list[int], ...]:
    source = SOURCES.index("program")
    key = Key(names[region.name], names[region.kind], traffic=REGION, source=source)
    return _row(key, region, 0, 0)


def _partner(partner: Partner, names: _Names) -> tuple[int | list[int], ...]:
    rank = OTHER_PARTNERS if partner.rank < 0 else partner.rank
    key = Key(names[partner.direction], names["native"], traffic=PARTNER, partner=rank)
    counts = np.zeros(CELL["histogram"].shape, "<u4").tolist()
    of_calls = (partner.messages, partner.message_bytes, _ns(partner.blocked_s))
    return (encode(key), 0, 0, *of_calls, 0, 0, 0, [0] * BLOCKS, counts)
