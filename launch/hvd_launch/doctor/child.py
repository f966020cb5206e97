"""Probes of `hvd-launch doctor`, a process for each: python -m hvd_launch.doctor.child PROBE.

Each prints its result as one line of JSON.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import resource
import socket
import sys
import time
from pathlib import Path
from typing import Any

from hvd_ext.system.freed_memory import keep_freed_memory
from hvd_launch.doctor.horovod_build import build_command
from hvd_launch.doctor.yielding import computed_per_s

# MPICH's MPIX_GPU_SUPPORT_CUDA.
_CUDA = 0
# A step of `filling`: blocks of 256 KiB to 16 MiB that exist at the same time, like activations.
_BLOCKS_BYTES = [2**power for power in range(18, 25) for _ in range(4)]
_STEPS = 6
_YIELDING_S = 0.5


def mpi4py() -> dict[str, Any]:
    """Return the MPI library that mpi4py loads."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    return {"library": MPI.Get_library_version(), "path": _loaded_mpi()}


def horovod() -> dict[str, Any]:
    """Return Horovod's build, and the MPI library that it loads."""
    import horovod
    import horovod.torch as hvd

    result: dict[str, Any] = {
        "version": horovod.__version__,
        "mpi": bool(hvd.mpi_built()),
        "gloo": bool(hvd.gloo_built()),
        "nccl": bool(hvd.nccl_built()),
        "cuda": bool(hvd.cuda_built()),
        "path": _loaded_mpi(),
    }
    if result["path"]:
        text = ctypes.create_string_buffer(8192)
        ctypes.CDLL(result["path"]).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
        result["library"] = text.value.decode(errors="replace")
    return result


def builds() -> dict[str, Any]:
    """Return the torch for which Horovod was built, and the packages of `make env`."""
    facts: dict[str, Any] = {"python": sys.executable}
    torch, horovod = (importlib.util.find_spec(name) for name in ("torch", "horovod"))
    if torch is not None and torch.origin:
        facts["torch"] = importlib.metadata.version("torch")
        facts["build"] = build_command(Path(torch.origin).parent)
    if horovod is not None and horovod.origin:
        text = Path(horovod.origin).with_name("metadata.json").read_text(encoding="utf-8")
        facts["horovod_for"] = json.loads(text).get("pytorch")
    stamp = Path(sys.prefix, "made_from.json")
    if stamp.exists():
        made = json.loads(stamp.read_text(encoding="utf-8")).get("held", {})
        facts["checkout"] = str(Path(sys.prefix).parent)
        facts["replaced"] = {
            name: [version, found]
            for name, version in made.items()
            if (found := _version(name)) != version
        }
    return facts


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def rank() -> dict[str, Any]:
    """Return this rank's view of its job."""
    from mpi4py import MPI

    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "rank": MPI.COMM_WORLD.rank,
        "size": MPI.COMM_WORLD.size,
        "host": socket.gethostname(),
        # Named by the standard's order, because libraries use different numbers.
        "threads": [
            MPI.THREAD_SINGLE,
            MPI.THREAD_FUNNELED,
            MPI.THREAD_SERIALIZED,
            MPI.THREAD_MULTIPLE,
        ].index(MPI.Query_thread()),
        "memlock": None if memlock == resource.RLIM_INFINITY else memlock,
        "cuda_aware": _cuda_aware(_loaded_mpi()),
    }


def filling() -> dict[str, Any]:
    """Measure the cost of filling memory that was just freed, as every training step does."""
    reason = keep_freed_memory()
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = (ctypes.c_size_t,)
    libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    libc.free.argtypes = (ctypes.c_void_p,)
    steps = []
    for _ in range(_STEPS):
        # CPU time, with the kernel's for this process, which other programs do not change.
        faults, began_s = _page_faults(), time.process_time()
        blocks = []
        for size in _BLOCKS_BYTES:
            blocks.append(libc.malloc(size))
            libc.memset(blocks[-1], 1, size)
        for block in reversed(blocks):
            libc.free(block)
        steps.append((time.process_time() - began_s, _page_faults() - faults))
    # The first step faults its memory in in any case.
    time_s, faults = min(steps[1:])
    return {
        "left": reason,
        "step_bytes": sum(_BLOCKS_BYTES),
        "page_faults": faults,
        "time_s": time_s,
    }


def yielding() -> dict[str, Any]:
    """Measure the speed of this job's ranks next to a thread that waits in MPI."""
    from mpi4py import MPI

    return {
        "rank": MPI.COMM_WORLD.rank,
        "per_s": computed_per_s(MPI.COMM_WORLD, _YIELDING_S),
    }


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _cuda_aware(library: str | None) -> bool | None:
    """Whether the library takes GPU buffers; None if unknown."""
    if library is None:
        return None
    mpi = ctypes.CDLL(library)
    if hasattr(mpi, "MPIX_Query_cuda_support"):
        return bool(mpi.MPIX_Query_cuda_support())
    if hasattr(mpi, "MPIX_GPU_query_support"):
        answer = ctypes.c_int()
        mpi.MPIX_GPU_query_support(_CUDA, ctypes.byref(answer))
        return bool(answer.value)
    return None


def _loaded_mpi() -> str | None:
    """Return the path of the libmpi that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith("libmpi.so"):
            return path
    return None


def main() -> None:
    """Print the result of the probe, or the error."""
    probes = {probe.__name__: probe for probe in (mpi4py, horovod, builds, rank, filling, yielding)}
    try:
        result = probes[sys.argv[1]]()
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    os.write(1, (json.dumps(result) + "\n").encode())


if __name__ == "__main__":
    main()
