"""What `hvd-launch doctor` runs in processes of their own: python -m hvd_launch.doctor.child WHAT.

Each tells what it sees as one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import sys
from pathlib import Path
from typing import Any

# MPICH's MPIX_GPU_SUPPORT_CUDA.
_CUDA = 0


def mpi4py() -> dict[str, Any]:
    """The MPI library that mpi4py loads."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    return {"library": MPI.Get_library_version(), "path": _loaded_mpi()}


def horovod() -> dict[str, Any]:
    """Horovod's build, and the MPI library that it loads."""
    import horovod
    import horovod.torch as hvd

    told: dict[str, Any] = {
        "version": horovod.__version__,
        "mpi": bool(hvd.mpi_built()),
        "gloo": bool(hvd.gloo_built()),
        "nccl": bool(hvd.nccl_built()),
        "cuda": bool(hvd.cuda_built()),
        "path": _loaded_mpi(),
    }
    if told["path"]:
        text = ctypes.create_string_buffer(8192)
        ctypes.CDLL(told["path"]).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
        told["library"] = text.value.decode(errors="replace")
    return told


def rank() -> dict[str, Any]:
    """This rank, as one of a job."""
    from mpi4py import MPI

    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "rank": MPI.COMM_WORLD.rank,
        "size": MPI.COMM_WORLD.size,
        "host": socket.gethostname(),
        # By the standard's order, whatever numbers the library gives them.
        "threads": [
            MPI.THREAD_SINGLE,
            MPI.THREAD_FUNNELED,
            MPI.THREAD_SERIALIZED,
            MPI.THREAD_MULTIPLE,
        ].index(MPI.Query_thread()),
        "memlock": None if memlock == resource.RLIM_INFINITY else memlock,
        "cuda_aware": _cuda_aware(_loaded_mpi()),
    }


def _cuda_aware(library: str | None) -> bool | None:
    """What the library says of GPU buffers; None if it does not say."""
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
    """Path of the libmpi that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith("libmpi.so"):
            return path
    return None


def main() -> None:
    """Print what was asked for, or the error."""
    probes = {"mpi4py": mpi4py, "horovod": horovod, "rank": rank}
    try:
        told = probes[sys.argv[1]]()
    except Exception as error:
        told = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    os.write(1, (json.dumps(told) + "\n").encode())


if __name__ == "__main__":
    main()
