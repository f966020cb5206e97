"""Simulated time of an MPI library's own allreduce: SMPI has the rules of four libraries.

The tables and rules are as of SimGrid's release, not of the installed version. Combining takes no
time here, so these times are lower bounds.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hvd_ext.errors import HvdExtError
from hvd_launch.simulate.platform import SCALE, Platform
from hvd_launch.simulate.replay import check_installed, smpirun

_FOLDER = Path(__file__).parent


def times_s(
    platform: Platform,
    nodes: int,
    ranks_per_node: int,
    selector: str,
    sizes: Sequence[int],
    link_share: float = 1.0,
) -> dict[int, float]:
    """Simulated seconds of one allreduce of float32, by message_bytes.

    Args:
        platform: the cluster.
        nodes: number of nodes that have ranks.
        ranks_per_node: number of ranks on a node.
        selector: SMPI's name of the library, as MpiFacts.simulated_as.
        sizes: message_bytes.
        link_share: see `replay`.

    Raises:
        HvdExtError: no smpirun or smpicc, or one failed.
    """
    check_installed()
    with tempfile.TemporaryDirectory(prefix="hvd-simulate-") as folder:
        program = _compile("library_allreduce", Path(folder))
        preloaded = _compile("library_introductions", Path(folder), "-shared", "-fPIC")
        words = [f"--cfg=smpi/coll-selector:{selector}"]
        words += ["--cfg=smpi/simulate-computation:no", str(program), *map(str, sizes)]
        output = smpirun(
            *(platform, nodes, ranks_per_node, Path(folder), words, link_share),
            preloaded=preloaded,
        )
    slowest = dict.fromkeys(sizes, 0.0)
    for line in output.splitlines():
        _, message_bytes, seconds = line.split()
        slowest[int(message_bytes)] = max(slowest[int(message_bytes)], float(seconds))
    return {message_bytes: time_s / SCALE for message_bytes, time_s in slowest.items()}


def _compile(name: str, folder: Path, *flags: str) -> Path:
    source, made = _FOLDER / f"{name}.c", folder / name
    try:
        subprocess.run(
            ["smpicc", "-O2", *flags, "-o", str(made), str(source)],
            check=True,
            capture_output=True,
            text=True,
            cwd=folder,
        )
    except FileNotFoundError:
        raise HvdExtError("smpicc: command not found: install all of libsimgrid-dev") from None
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["it printed nothing"])[0]
        raise HvdExtError(f"smpicc cannot compile {source.name}: {reason}") from None
    return made
