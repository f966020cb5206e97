"""The environment of a rank's program: the GPUs that it sees."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from hvd_launch.backends.libraries import find
from hvd_launch.rank import visibility
from hvd_launch.rank.environment import RankInfo

_SET_DEVICE_SHIM = Path(__file__).resolve().parent / "set_device_shim"


def rank_environment(
    environ: Mapping[str, str],
    here: RankInfo,
    strategy: str,
    backend: str | None,
    gpu_count: int,
) -> dict[str, str]:
    """Return the environment of a rank's program; rank 0 prints notes on standard error.

    Args:
        environ: this process's environment.
        here: its rank.
        strategy: a key of STRATEGIES, or "auto".
        backend: the MPI library, a key of LIBRARIES; None: from the launcher's variables.
        gpu_count: GPUs of this machine.
    """
    devices = visibility.pool(environ, gpu_count)
    if len(devices) <= 1 and strategy == "auto":
        return _with(environ, here, visibility.view(strategy, devices, here.local_rank))
    library = find(backend or here.family)
    knows = strategy in ("auto", "split") and _library_reads_list(environ)
    reason = "as asked"
    if strategy == "auto":
        strategy, reason = visibility.choose(library, devices, environ, knows)
    seen = visibility.view(strategy, devices, here.local_rank, library)
    notes = [f"visibility {seen.strategy} ({reason}): {_list(seen.variables)}", *seen.notes]
    if strategy == "split" and seen.strategy == "split" and not knows:
        notes.append(visibility.split_warning(library.title if library else "the MPI library"))
    if here.rank == 0:
        for note in notes:
            sys.stderr.write(f"hvd-launch: {note}\n")
    return _with(environ, here, seen)


def _with(environ: Mapping[str, str], here: RankInfo, seen: visibility.View) -> dict[str, str]:
    """Return the environment with the GPUs that a rank sees, and its own one."""
    result = {**environ, **seen.variables}
    if seen.own is not None and seen.own != here.local_rank:
        result[visibility.OWN] = f"{here.local_rank}:{seen.own}:{seen.strategy}"
        path = [str(_SET_DEVICE_SHIM), *filter(None, [environ.get("PYTHONPATH")])]
        result["PYTHONPATH"] = os.pathsep.join(path)
    return result


def _list(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items()) or "nothing is set"


@functools.cache
def _strings(library: Path, word: bytes) -> bool:
    try:
        return word in library.read_bytes()
    except OSError:
        return False


def _library_reads_list(environ: Mapping[str, str]) -> bool:
    """Whether the MPI library that a program would load supports MV2_VISIBLE_DEVICES.

    The variable is in the paper that introduced it, but in no public source or guide, so it is
    searched in the library itself.
    """
    folders = [Path(entry) for entry in environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    mpirun = shutil.which("mpirun", path=environ.get("PATH"))
    if mpirun is not None:
        folders += [Path(mpirun).resolve().parent.parent / lib for lib in ("lib", "lib64")]
    for folder in folders:
        library = folder / "libmpi.so"
        if library.exists():
            return _strings(library, visibility.LIBRARY_LIST.encode())
    return False
