"""The variables of a job, the same for run, doctor, tune and benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from hvd_ext.errors import UsageError
from hvd_launch import freed_memory, machine
from hvd_launch.backends.base import MpiLibrary
from hvd_launch.backends.libraries import LIBRARIES
from hvd_launch.settings import PRESETS, Setting

DEFAULT_PRESET = "mpi-opt"


@dataclass(frozen=True)
class JobSettings:
    """Settings of a job in addition to the environment.

    Attributes:
        given: settings to apply.
        kept: settings left out, because the environment has another value.
        has_gpus: whether the preset's settings are among them.
    """

    given: tuple[Setting, ...]
    kept: tuple[Setting, ...]
    has_gpus: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for `job_settings`, which run and env share."""
    parser.add_argument(
        "--backend", choices=sorted(LIBRARIES), help="MPI library (default: detected)"
    )
    parser.add_argument(
        "--preset",
        choices=sorted(PRESETS),
        help="; ".join(f"{name}: {text}" for name, text in PRESETS.items())
        + f" (default: {DEFAULT_PRESET} on machines with GPUs; one that is given is for hosts with "
        "GPUs, also where this machine has none)",
    )
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs on each host (default: as on this one)"
    )
    parser.add_argument("--ucx", action="store_true", help="send through UCX")


def job_settings(
    library: MpiLibrary,
    environ: Mapping[str, str],
    preset: str | None = None,
    gpu_count: int | None = None,
    ucx: bool = False,
) -> JobSettings:
    """Return settings for ranks of an MPI library in this environment.

    Args:
        library: library of the ranks.
        environ: environment of the ranks, whose values are kept.
        preset: one of settings.PRESETS, for hosts with GPUs; None: DEFAULT_PRESET on such hosts.
        gpu_count: GPUs of each host (default: of this machine).
        ucx: whether to send through UCX.

    Raises:
        UsageError: the library does not support UCX, HVD_EXT_KEEP_MEMORY is neither 0 nor 1, or
            the number of GPUs is negative.
    """
    if gpu_count is not None and gpu_count < 0:
        raise UsageError(f"--gpus {gpu_count}: a host has 0 GPUs or more")
    has_gpus = bool(gpu_count)
    if gpu_count is None:
        has_gpus = preset is not None or machine.gpus() > 0
    wanted = [*freed_memory.settings(environ), *library.settings()]
    if has_gpus:
        wanted += library.gpu_settings(preset or DEFAULT_PRESET, environ)
    if ucx:
        wanted += library.ucx_settings()
    kept = tuple(s for s in wanted if environ.get(s.name, s.value) != s.value)
    return JobSettings(tuple(s for s in wanted if s not in kept), kept, has_gpus)
