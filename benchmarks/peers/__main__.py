"""Is hvd_ext's allreduce faster than the best peer that an expert could set up on one node?

The peers are Open MPI 4 and 5, MPICH, Intel MPI, oneCCL and UCC, each with several settings
(benchmarks/peers/contenders.py). Every contender is launched once a round, alone, in another order
each round. The peers are called from C, hvd_ext from Python, in place, by pinned ranks. A launch
verifies the sum of each message before it is timed; the result is the median of the launches.
hvd_ext's buffers lie in the arena, are the caller's, or come from `empty`.

A peer that is not installed is named and left out; --install gets it from the package index, but
UCC: it is built with UCX, outside of the checkout, and --ucc names its folder.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.peers import contenders
from benchmarks.peers.contenders import CONTENDERS, LIBRARIES
from benchmarks.peers.worker import BUFFERS, FORMATS
from hvd_ext.cli import above_zero, at_least, progress, size_bytes
from hvd_ext.errors import UsageError
from hvd_ext.system.process import run_to_end
from hvd_ext.units import format_bytes, format_seconds
from testbed import ranks, timing

_OURS = "hvd_ext"
_LONG_FROM = 16 << 10
_TIMEOUT_S = 600.0
_WIDTH = 112  # of the table, in characters
# By buffer (hvd_ext's) or "caller" (peers'), format and bytes: the microseconds of each launch.
Key = tuple[str, str, int]
Times = dict[str, dict[Key, list[float]]]


def main(arguments: Sequence[str]) -> int:
    """Launch the contenders one after another, or be a rank of hvd_ext's."""
    parser = harness.parser("peers", __doc__, "--np 2 --json F", rounds=7)
    parser.add_argument("--np", type=at_least(2), default=2, help="ranks (2)")
    parser.add_argument(
        "--least", type=size_bytes, default="64", metavar="BYTES", help="shortest message (64)"
    )
    parser.add_argument(
        "--most", type=size_bytes, default="64MiB", metavar="BYTES", help="longest (64MiB)"
    )
    parser.add_argument(
        "--library", choices=LIBRARIES, action="append", help="only this peer (all)"
    )
    parser.add_argument(
        "--size-s", type=above_zero, default=0.06, metavar="S", help="s for each size (0.06)"
    )
    parser.add_argument("--install", action="store_true", help="install peers that are absent")
    parser.add_argument("--ucc", type=Path, metavar="PREFIX", help="where UCC is installed")
    options = parser.parse_args(arguments)
    least, most, size_s = options.least, options.most, options.size_s
    if not 4 <= least <= most:
        raise UsageError(f"--least {least} --most {most}: give 4 <= least <= most")
    if options.worker:
        from benchmarks.peers.worker import work

        work(least, most, size_s)
        return 0
    libraries = options.library or list(LIBRARIES)
    if options.install:
        for name in libraries:
            contenders.install(name)
    absent = {name: why for name in libraries if (why := contenders.absent(name, options.ucc))}
    for name, why in absent.items():
        print(f"{name} is left out: {why}")
    names = [n for n, c in CONTENDERS.items() if c.library in libraries and c.library not in absent]
    with tempfile.TemporaryDirectory() as folder:
        words = [str(least), str(most), str(size_s)]
        comparison = _Comparison(Path(folder), options.np, words, options.ucc)
        comparison.run([_OURS, *names], options.rounds)
    result = {
        "size": options.np,
        "sizes": _sizes(comparison.times),
        "settings": {
            name: {"library": c.library, "variables": dict(c.variables)}
            for name, c in CONTENDERS.items()
            if name in names
        },
        "absent": absent,
    }
    result |= _least_ratios(result["sizes"])
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


class _Comparison:
    """The launches of all contenders.

    Attributes:
        times: of each contender.
    """

    def __init__(self, folder: Path, size: int, arguments: Sequence[str], ucc: Path | None) -> None:
        """Take the ranks, the least and the most bytes, the seconds for each size, and UCC."""
        self._ucc = ucc
        self.times: Times = defaultdict(lambda: defaultdict(list))
        self._folder, self._size, self._arguments = folder, size, arguments
        self._programs: dict[str, Path] = {}
        # A core each: they need not yield it. With fewer cores they have to.
        yields = "01"[size > (os.cpu_count() or 1)]
        self._spin = {"OMPI_MCA_mpi_yield_when_idle": yields, "I_MPI_THREAD_YIELD": yields}

    def run(self, names: Sequence[str], rounds: int) -> None:
        """Launch every contender once a round, each round in another order.

        Raises:
            JobError: one of them failed, or its sums are wrong.
        """
        with progress("launches", rounds * len(names)) as advance:
            for number in range(rounds):
                order = random.Random(number).sample(names, len(names))
                for place, name in enumerate(order):
                    advance(number * len(names) + place, f"round {number + 1}: {name}")
                    for *key, time_us in self._ours() if name == _OURS else self._peer(name):
                        self.times[name][tuple(key)].append(time_us)
            advance(rounds * len(names), "done")

    def _ours(self) -> Any:
        flags = zip(("--least", "--most", "--size-s"), self._arguments, strict=True)
        return ranks.launch(
            "benchmarks.peers",
            self._size,
            [word for flag in flags for word in flag],
            _TIMEOUT_S,
            start=self._launcher(contenders.LIBRARIES["openmpi4"].python),
            variables=self._spin,
        )

    def _peer(self, name: str) -> Iterable[tuple[Any, ...]]:
        contender = CONTENDERS[name]
        library = LIBRARIES[contender.library]
        if contender.library not in self._programs:
            program = contenders.compiled(contender.library, self._folder, self._ucc)
            self._programs[contender.library] = program
        output = self._folder / "times"
        output.unlink(missing_ok=True)
        command = [self._programs[contender.library], output, *self._arguments]
        done = run_to_end(
            [*self._launcher(library.python), *map(str, command)],
            ranks.environment(
                {**self._spin, **library.running, **contender.variables}, str(library.python)
            ),
            _TIMEOUT_S,
        )
        if done.returncode != 0 or not output.exists():
            last = ranks.last_lines(done.stdout)
            raise ranks.JobError(f"{name} failed with exit code {done.returncode}:\n{last}")
        for line in output.read_text().splitlines():
            dtype, message_bytes, time_us = line.split()
            yield "caller", dtype, int(message_bytes), float(time_us)

    def _launcher(self, python: Path) -> list[str]:
        command = ranks.hvd_launch(self._size, str(python))
        return [*command[:-1], "--bare", command[-1]]


def _sizes(times: Times) -> list[dict[str, Any]]:
    """A row for each buffer, format and size."""
    rows = []
    for key, ours in times[_OURS].items():
        buffer, dtype, message_bytes = key
        theirs = {
            name: of[peers_key]
            for name, of in times.items()
            if (peers_key := ("caller", dtype, message_bytes)) in of and name != _OURS
        }
        row: dict[str, Any] = {
            "dtype": dtype,
            "buffer": buffer,
            "message_bytes": message_bytes,
            "time_us": {n: timing.summary(t) for n, t in {_OURS: ours, **theirs}.items()},
        }
        if theirs:
            best = min(theirs, key=lambda name: statistics.median(theirs[name]))
            row["best_peer"] = best
            row["ratio_vs_best_peer"] = timing.ratio(theirs[best], ours)
        # As many elements of float32 are twice the bytes.
        wide = times[_OURS].get((buffer, "float32", 2 * message_bytes))
        if dtype != "float32" and wide:
            row["time_over_float32"] = timing.ratio(ours, wide)
        rows.append(row)
    return rows


def _least_ratios(sizes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By buffer: the least ratio to the best peer, of all messages and of the long ones."""
    found: dict[str, Any] = {"least_ratio": {}, "least_ratio_from_16_kib": {}}
    for name, least in zip(found, (0, _LONG_FROM), strict=True):
        for buffer in BUFFERS:
            ratios = [
                row["ratio_vs_best_peer"]
                for row in sizes
                if row["buffer"] == buffer and row["message_bytes"] >= least and "best_peer" in row
            ]
            if ratios:
                found[name][buffer] = min(ratios)
    return found


def _print(result: Mapping[str, Any]) -> None:
    of = {(r["buffer"], r["dtype"], r["message_bytes"]): r for r in result["sizes"]}
    rows: list[tuple[str, ...]] = []
    for dtype in FORMATS:
        for size in sorted({s for _, d, s in of if d == dtype}):
            cells = [dtype, format_bytes(size)]
            first = of[BUFFERS[0], dtype, size]
            best = first.get("best_peer")
            cells += [best, _time(first, best)] if best else ["-", "-"]
            for buffer in BUFFERS:
                row = of[buffer, dtype, size]
                ratio = row.get("ratio_vs_best_peer", math.nan)
                cells += [_time(row, _OURS), f"{ratio:.2f} x" if best else "-"]
            rows.append(tuple(cells))
        rows.append(())
    columns = ["", "message", "best peer", "time", *(w for b in BUFFERS for w in (b, ""))]
    console = harness.print_table(
        f"allreduce on {result['size']} ranks, hvd_ext and the best peer",
        columns,
        rows[:-1],
        left=3,
        width=_WIDTH,
    )
    for words, name in (("", "least_ratio"), (" from 16 KiB", "least_ratio_from_16_kib")):
        for buffer, ratio in result[name].items():
            console.print(f"least ratio{words}, {buffer}: {ratio:.2f} x")


def _time(row: Mapping[str, Any], name: str) -> str:
    return format_seconds(row["time_us"][name]["median"] / 1e6)


if __name__ == "__main__":
    harness.run(main, "peers")
