"""The C line of a process of this machine, by gdb, and its system call, by the kernel."""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
import subprocess
from pathlib import Path

from hvprof.printable import printable

_PATIENCE_S = 10.0
_FRAME = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+ in )?(\S+) \(.*\)(?: at (\S+)| from (\S+))?$")
_LIBRARIES = ("/lib/", "/lib64/", "/usr/lib", "/opt/", "../")


# System calls that block, by their numbers, and those whose first argument is a file.
_NUMBERS = {
    "x86_64": {
        **{0: "read", 1: "write", 7: "poll", 17: "pread64", 18: "pwrite64", 23: "select"},
        **{35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom"},
        **{46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync"},
        **{75: "fdatasync", 128: "rt_sigtimedwait", 202: "futex", 230: "clock_nanosleep"},
        **{232: "epoll_wait", 247: "waitid", 257: "openat", 270: "pselect6", 271: "ppoll"},
        **{281: "epoll_pwait", 288: "accept4"},
    },
    "aarch64": {
        **{22: "epoll_pwait", 25: "fcntl", 32: "flock", 56: "openat", 63: "read", 64: "write"},
        **{67: "pread64", 68: "pwrite64", 72: "pselect6", 73: "ppoll", 82: "fsync"},
        **{83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep"},
        **{137: "rt_sigtimedwait", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom"},
        **{211: "sendmsg", 212: "recvmsg", 242: "accept4", 260: "wait4"},
    },
}
_OF_FILES = ("read", "write", "pread", "pwrite", "f", "accept", "connect", "send", "recv", "epoll")


def sleeps_in(pid: int) -> str:
    """Return the system call in which a process sleeps, its file, and the kernel's function."""
    channel = ""
    with contextlib.suppress(OSError):
        channel = Path(f"/proc/{pid}/wchan").read_text().strip()
    text = _system_call(pid)
    if channel not in ("", "0"):
        text = f"{text}, in the kernel's {channel}" if text else f"in the kernel's {channel}"
    return printable(f"sleeps in {text.removeprefix('in ')}") if text else ""


def _system_call(pid: int) -> str:
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/syscall").read_text().split()
        name = _NUMBERS.get(platform.machine(), {}).get(int(words[0]), f"system call {words[0]}")
        if name.startswith(_OF_FILES) and name != "futex":
            with contextlib.suppress(OSError):
                name += f" of {Path(f'/proc/{pid}/fd/{int(words[1], 16)}').readlink()}"
        return name
    return ""


def c_line_of(pid: int) -> str:
    """Return the innermost line outside of libraries that a process runs; "" without gdb."""
    program = shutil.which("gdb")
    if not program:
        return ""
    command = [program, "-p", str(pid), "-batch", "-nx", "-ex", "bt 32"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return ""
    return frame_in(done.stdout)


def frame_in(text: str) -> str:
    """Return the innermost frame outside of libraries in gdb's `bt`: "halo.c:212 in swap"."""
    for line in text.splitlines():
        found = _FRAME.match(line)
        if not found or found[1] == "??" or found[1].startswith("__"):
            continue
        place = found[2] or found[3] or ""
        if place.startswith(_LIBRARIES):
            continue
        where = f"{Path(place).name} in " if found[2] else "in "
        return printable(f"{where}{found[1]}")
    return ""
