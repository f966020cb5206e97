"""CUDA's errors, in CuPy's words."""

from __future__ import annotations

_MEANING = {
    "cudaErrorInvalidValue": "invalid argument",
    "cudaErrorInvalidDevice": "invalid device ordinal",
    "cudaErrorInvalidResourceHandle": "invalid resource handle",
    "cudaErrorDeviceUninitialized": "invalid device context",
    "cudaErrorMapBufferObjectFailed": "mapping of buffer object failed",
    "cudaErrorIllegalAddress": "an illegal memory access was encountered",
    "cudaErrorNotReady": "device not ready",
    "cudaErrorLaunchTimeout": "the launch timed out and was terminated",
}


class CUDARuntimeError(RuntimeError):
    """A call to CUDA has failed; the message begins with CUDA's name of the error."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: {_MEANING[name]}")
