"""The codec as other kinds of CPU run it: compiled without vector instructions, or for this one."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
from pathlib import Path

from hvd_ext.compression import codec

SOURCE = Path(codec.__file__).with_name("codec.c")
SCALAR = ("-O1", "-fno-tree-vectorize", "-U__gnu_linux__")  # without it no loop has versions
THIS_CPU = ("-O3", "-march=native", "-U__gnu_linux__")  # with fused multiply-add, where there is


def compile_codec(folder: Path, flags: tuple[str, ...]) -> ctypes.CDLL:
    """The codec, compiled as setup.py does but for these flags."""
    path = folder / f"lib{abs(hash(flags))}.so"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    common = ("-fwrapv", "-ffp-contract=off", "-shared", "-fPIC")
    subprocess.run([*compiler, *flags, *common, str(SOURCE), "-o", str(path)], check=True)
    return codec.declare(ctypes.CDLL(str(path)))
