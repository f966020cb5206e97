"""The variables that a job is started with: one answer for run, doctor, tune and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvd_launch import freed_memory, machine
from hvd_launch.backends.base import MpiLibrary
from hvd_launch.settings import Setting

DEFAULT_PRESET = "mpi-opt"


@dataclass(frozen=True)
class JobSettings:
    """Settings of a job in addition to the environment.

    Attributes:
        given: settings to apply.
        kept: settings left out, since the environment has another value.
    """

    given: tuple[Setting, ...]
    kept: tuple[Setting, ...]


def job_settings(
    library: MpiLibrary,
    environ: Mapping[str, str],
    preset: str = DEFAULT_PRESET,
    gpu_count: int | None = None,
    ucx: bool = False,
) -> JobSettings:
    """Settings for ranks of an MPI library in this environment.

    Args:
        library: whose ranks.
        environ: the environment that they are to have; what it sets is kept.
        preset: of settings.PRESETS; for machines with GPUs.
        gpu_count: of each host (default: of this machine).
        ucx: send through UCX.

    Raises:
        UsageError: the library does not support UCX, or HVD_EXT_KEEP_MEMORY is neither 0 nor 1.
    """
    wanted = [*freed_memory.settings(environ), *library.settings()]
    if machine.gpus() if gpu_count is None else gpu_count:
        wanted += library.gpu_settings(preset, environ)
    if ucx:
        wanted += library.ucx_settings()
    kept = tuple(s for s in wanted if environ.get(s.name, s.value) != s.value)
    return JobSettings(tuple(s for s in wanted if s not in kept), kept)
