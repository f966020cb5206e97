"""hvprof link: the linker's flags for programs into which the recorder cannot be preloaded."""

from __future__ import annotations

import argparse
import shlex

from hvd_ext.errors import HvdExtError
from hvprof.recording.session import LIBRARY

HELP = "print flags that link the recorder with a program"
ABOUT = (
    "Print the flags that link the recorder with a program, where LD_PRELOAD does not reach it: in "
    "containers, with setuid, or because it is linked statically. Place them before the "
    "program's own files. Without hvprof record such a program runs as before."
)
EXAMPLE = "link --static"

_OBJECT, _SCRIPT = LIBRARY.with_name("hvprof.o"), LIBRARY.with_name("hvprof.ld")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--static",
        action="store_true",
        help="for a program that is linked with a static library of MPI, by GNU ld",
    )


def run(options: argparse.Namespace) -> int:
    needed = [_SCRIPT, _OBJECT] if options.static else [LIBRARY]
    for path in needed:
        if not path.is_file():
            raise HvdExtError(f"{path} is not built: run make env or pip install . again")
    words = [str(path) for path in needed]
    if options.static:
        # MPICH has functions of `use mpi_f08` in one file: the recorder's are taken of those.
        words += ["-Wl,-z,muldefs", "-pthread"]
    else:
        words = ["-Wl,--push-state,--no-as-needed", *words, "-Wl,--pop-state"]
    print(shlex.join(words))
    return 0
