"""The stand-in for CuPy has the limits of CUDA's handles, events and streams."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from testbed.cuda_stand_in import asarray, cuda, kernels, memory, streams
from testbed.cuda_stand_in.errors import CUDARuntimeError
from testbed.ranks import ROOT, environment

runtime: Any = cuda.runtime
INTERPROCESS = 0x02 | 0x04
# A process with memory of its own: prints handles, and stays until it is told to end.
ELSEWHERE = """
import ctypes
from testbed.cuda_stand_in import memory, runtime
for size in (100, 100, 4 << 20):
    address = runtime.malloc(size)
    ctypes.memset(address, 7, size)
    print(runtime.ipcGetMemHandle(address).hex())
print(runtime.ipcGetEventHandle(runtime.eventCreateWithFlags(6)).hex())
for _ in range(memory.MOST_OPEN):
    print(runtime.ipcGetMemHandle(runtime.malloc(memory.BLOCK_BYTES)).hex())
print(flush=True)
input()
"""


@pytest.fixture
def elsewhere() -> Iterator[list[bytes]]:
    """Handles of two small allocations, a long one, an event, and of many more allocations."""
    process = subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    )
    assert process.stdout
    yield [bytes.fromhex(line) for line in iter(process.stdout.readline, "\n")]
    process.communicate("\n")


@pytest.fixture
def broken() -> Iterator[None]:
    """What a test does to a device is over with it."""
    yield
    streams.forget_errors()


def test_a_handle_is_of_the_whole_block_and_opened_elsewhere_alone(elsewhere: list[bytes]) -> None:
    first, second, long, *_ = elsewhere
    assert len(first) == 64
    assert first == second != long
    at = runtime.ipcOpenMemHandle(first)
    assert runtime.ipcOpenMemHandle(second) == at
    block = ctypes.string_at(at, memory.BLOCK_BYTES)
    # Neither allocation begins where the block does.
    assert block.count(b"\x07") == 200
    assert block[0] == 0
    runtime.ipcCloseMemHandle(at)
    assert memory.count_open() == 1
    runtime.ipcCloseMemHandle(at)
    assert memory.count_open() == 0
    with pytest.raises(CUDARuntimeError, match="cudaErrorInvalidValue"):
        runtime.ipcCloseMemHandle(at)
    own = runtime.ipcGetMemHandle(runtime.malloc(100))
    with pytest.raises(CUDARuntimeError, match="cudaErrorDeviceUninitialized"):
        runtime.ipcOpenMemHandle(own)
    with pytest.raises(CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
        runtime.ipcOpenMemHandle(b"no handle")


def test_so_many_handles_are_open_and_no_more(elsewhere: list[bytes]) -> None:
    _, _, long, _, *many = elsewhere
    opened = [runtime.ipcOpenMemHandle(handle) for handle in many]
    with pytest.raises(CUDARuntimeError, match="cudaErrorMapBufferObjectFailed"):
        runtime.ipcOpenMemHandle(long)
    for at in opened:
        runtime.ipcCloseMemHandle(at)
    runtime.ipcCloseMemHandle(runtime.ipcOpenMemHandle(long))


def test_an_event_of_another_process_is_opened_there_alone(elsewhere: list[bytes]) -> None:
    theirs = runtime.ipcOpenEventHandle(elsewhere[3])
    runtime.eventDestroy(theirs)
    with pytest.raises(CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
        runtime.eventDestroy(theirs)
    with pytest.raises(CUDARuntimeError, match="cudaErrorInvalidValue"):
        runtime.eventCreateWithFlags(0x04)  # which is timed
    with pytest.raises(CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
        runtime.ipcGetEventHandle(runtime.eventCreateWithFlags(0x02))
    own = runtime.ipcGetEventHandle(runtime.eventCreateWithFlags(INTERPROCESS))
    with pytest.raises(CUDARuntimeError, match="cudaErrorDeviceUninitialized"):
        runtime.ipcOpenEventHandle(own)


def test_streams_have_no_order_but_that_of_events() -> None:
    late, early = (cuda.Stream(non_blocking=True) for _ in range(2))
    event = runtime.eventCreateWithFlags(INTERPROCESS)
    held, seen = threading.Event(), []
    runtime.streamWaitEvent(early.ptr, event)  # it is not recorded: there is nothing to wait for
    early.launch_host_func(seen.append, "not waited")
    early.synchronize()
    late.launch_host_func(lambda _: held.wait(), None)
    late.launch_host_func(seen.append, "late")
    runtime.eventRecord(event, late.ptr)
    early.launch_host_func(seen.append, "early")
    early.synchronize()
    runtime.streamWaitEvent(early.ptr, event)
    early.launch_host_func(seen.append, "waited")
    held.set()
    early.synchronize()
    assert seen == ["not waited", "early", "late", "waited"]


def test_an_event_that_is_recorded_again_is_its_last_record() -> None:
    late, early = (cuda.Stream(non_blocking=True) for _ in range(2))
    event, held = runtime.eventCreateWithFlags(INTERPROCESS), threading.Event()
    late.launch_host_func(lambda _: held.wait(), None)
    for stream in (late, early):
        runtime.eventRecord(event, stream.ptr)
    runtime.eventSynchronize(event)
    held.set()
    late.synchronize()
    assert runtime.eventQuery(event) == 0


def test_a_kernel_touches_only_what_is_open(elsewhere: list[bytes], broken: None) -> None:
    source = ROOT / "hvd_ext" / "arena" / "cuda" / "reduce.cu"
    module = kernels.RawModule(code=source.read_text(encoding="utf-8"))
    module.compile()
    add = module.get_function("reduce_float32")
    own, peer = runtime.malloc(64), runtime.ipcOpenMemHandle(elsewhere[2])
    both = asarray([own, peer], np.uint64)
    arguments = (both, np.int32(2), both, np.int32(2), np.uint64(0), np.uint64(4), np.float32(1))
    stream = cuda.Stream(non_blocking=True)
    with stream:
        add((1,), (32,), arguments)
    stream.synchronize()
    assert ctypes.string_at(own, 64) == ctypes.string_at(peer, 64)
    held = threading.Event()
    stream.launch_host_func(lambda _: held.wait(), None)
    with stream:
        add((1,), (32,), arguments)
    runtime.ipcCloseMemHandle(peer)
    held.set()
    for _ in range(2):  # an error of a device is its last
        with pytest.raises(CUDARuntimeError, match="cudaErrorIllegalAddress"):
            stream.synchronize()


def test_a_stream_is_its_devices_alone() -> None:
    with cuda.Device(1):
        stream = cuda.Stream(non_blocking=True)
        event = runtime.eventCreateWithFlags(INTERPROCESS)
    runtime.eventRecord(event, stream.ptr)
    with pytest.raises(CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
        runtime.eventRecord(event, 0)
    with pytest.raises(CUDARuntimeError, match="cudaErrorInvalidDevice"):
        runtime.setDevice(streams.DEVICES)
