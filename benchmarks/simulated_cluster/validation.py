"""Measured on emulated hosts, and predicted for more of them than the simulator was shown."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from hvd_ext.allreduce import ALGORITHMS
from hvd_ext.cli import progress
from hvd_launch.simulate import replay
from hvd_launch.simulate.calibration import Calibration, Sample, calibrate
from hvd_launch.simulate.platform import Platform
from testbed import ranks
from testbed.emulated_hosts import emulated_hosts

_LEAST_BYTES = 4096
# CUBIC takes the wait of acknowledgements behind what its host sends for a full path: both
# directions at once take up to twice as long as one. A simulator knows no congestion control.
_CONGESTION = "reno"
# In SMPI a sender waits for all of a message or for none of it. Here a socket takes the first 96 to
# 160 KiB at once, so the sender of 256 KiB waits for about half: below that, let it wait for none.
_EAGER_KIB = 256.0
# A choice is right if it costs no more than that over the best one.
_RIGHT = 1.05
_SAMPLE_S, _MOST_CALLS = 0.02, 50
# Every second size is enough to calibrate.
_EVERY = 2
# Seconds, by message_bytes, then by algorithm.
Times = dict[int, dict[str, float]]


def sizes(count: int, most: int) -> list[int]:
    """So many sizes from 4 KiB to `most`, each as many times the one before, whole floats."""
    exact = np.geomspace(_LEAST_BYTES, most, count)
    return [int(size) // 4 * 4 for size in np.round(exact)]


def validate(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, calibrate, predict, and compare."""
    counts = sizes(options.sizes, options.most_bytes)
    hosts = [*options.calibrated_on, options.predicted]
    if options.measured:
        measured = _read(options.measured, hosts, counts)
    else:
        measured = {count: _measure(count, options, counts) for count in hosts}
    samples = [
        Sample(count, name, size, time_s)
        for count in options.calibrated_on
        for size in counts[::_EVERY]
        for name, time_s in measured[count][size].items()
    ]
    with progress("calibrate") as advance:
        found = calibrate(samples, Platform(eager_kib=_EAGER_KIB), advance)
    predicted = {
        size: {
            name: replay.time_s(found.platform, options.predicted, 1, name, size)
            for name in by_name
        }
        for size, by_name in measured[options.predicted].items()
    }
    return {
        **compare(measured[options.predicted], predicted),
        "calibration": _calibration(found),
        "measured_s": measured,
        "predicted_s": predicted,
        "gbit": options.gbit,
        "hosts": hosts,
    }


def compare(measured: Times, predicted: Times) -> dict[str, Any]:
    """How far predictions are from measurements, and which algorithm either finds fastest."""
    errors = [
        abs(predicted[size][name] / time_s - 1)
        for size, by_name in measured.items()
        for name, time_s in by_name.items()
    ]
    choices: list[dict[str, Any]] = []
    right = 0
    for size, by_name in measured.items():
        named = min(predicted[size], key=predicted[size].__getitem__)
        best = min(by_name, key=by_name.__getitem__)
        cost = by_name[named] / by_name[best]
        right += cost <= _RIGHT
        choices.append({"message_bytes": size, "predicted": named, "measured": best, "costs": cost})
    return {
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "right_choices": right,
        "choices": choices,
    }


def _calibration(found: Calibration) -> Mapping[str, Any]:
    return {
        "platform": asdict(found.platform),
        "median_error": found.median_error,
        "worst_error": found.worst_error,
    }


def _read(path: Path, hosts: Sequence[int], counts: Sequence[int]) -> dict[int, Times]:
    """The times in the JSON of an earlier run.

    Raises:
        BenchmarkError: it has other hosts or sizes.
    """
    found = json.loads(path.read_text(encoding="utf-8"))["measured_s"]
    measured = {
        int(count): {int(size): by_name for size, by_name in times.items()}
        for count, times in found.items()
    }
    if any(set(measured.get(count, ())) != set(counts) for count in hosts):
        raise harness.BenchmarkError(
            f"--measured {path}: it has other hosts or sizes; give the options of its run"
        )
    return {count: measured[count] for count in hosts}


def _measure(hosts: int, options: argparse.Namespace, counts: Sequence[int]) -> Times:
    words = [f"--message-bytes={','.join(map(str, counts))}", f"--rounds={options.rounds}"]
    with emulated_hosts(hosts, options.gbit, congestion=_CONGESTION, fair=True) as emulated:
        found = ranks.launch(
            "benchmarks.simulated_cluster",
            hosts,
            words,
            timeout_s=7200,
            start=emulated.mpirun(1),
            variables=emulated.environment(),
        )
    return {int(size): by_name for size, by_name in found.items()}


def work(counts: Sequence[int], rounds: int) -> None:
    """Be a rank: time every algorithm of hvd_ext at each size, interleaved."""
    from mpi4py import MPI

    from hvd_ext.allreduce.algorithms import NATIVE
    from hvd_ext.allreduce.operations import OPERATIONS
    from hvd_ext.allreduce.prepare import prepare
    from hvd_ext.allreduce.timing import check, interleave, repeats_for

    world = MPI.COMM_WORLD
    times: Times = {}
    for size in counts:
        buffer = np.zeros(size // 4, np.float32)
        names = [name for name in ALGORITHMS if name != NATIVE]
        calls = {name: prepare(name, world, buffer, OPERATIONS["sum"]) for name in names}
        repeats = {}
        for name, call in calls.items():
            check(world, world, name, buffer, call)
            repeats[name], _ = repeats_for(world, call, _SAMPLE_S, _MOST_CALLS)
        samples = interleave(world, calls, repeats, rounds)
        times[size] = {name: statistics.median(taken) for name, taken in samples.items()}
    if world.rank == 0:
        ranks.report(times)
