"""Where a process of this machine that is no Python stands: by gdb, and by what the kernel says."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

from hvprof.printable import printable

_PATIENCE_S = 10.0
_FRAME = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+ in )?(\S+) \(.*\)(?: at (\S+)| from (\S+))?$")
_LIBRARIES = ("/lib/", "/lib64/", "/usr/lib", "/opt/", "../")


def c_line_of(pid: int) -> str:
    """The innermost line outside of libraries, and the kernel's function that it sleeps in."""
    # gdb stops the process, which then sleeps somewhere else.
    channel = _wait_channel(pid)
    return ", ".join(filter(None, [_by_gdb(pid), channel]))


def _wait_channel(pid: int) -> str:
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/wchan").read_text().strip()
        return printable(f"sleeps in the kernel's {name}") if name not in ("", "0") else ""
    return ""


def _by_gdb(pid: int) -> str:
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
    """The innermost frame outside of libraries that gdb's `bt` prints: "halo.c:212 in swap"."""
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
