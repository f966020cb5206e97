"""Where torch and Horovod come from. Standard library only."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import urllib.request
from pathlib import Path

from wheels import leftovers
from workshop import Failure

from hvd_launch.doctor.horovod_build import CMAKE_FILES, gpu_present

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_PROBE_S = 5


def torch_options() -> tuple[str, ...]:
    """The options of pip for torch: PyTorch's index of CPU builds, where there is no GPU.

    On PyPI torch for x86-64 is a CUDA build of some gigabytes. Where the index of CPU builds
    cannot be reached, pip's own configuration decides.
    """
    if gpu_present():
        return ()
    try:
        urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=_PROBE_S).close()
    except (OSError, ValueError):
        return ()
    return ("--extra-index-url", CPU_INDEX)


def source_key(source: str) -> str:
    """A short name of a source of Horovod: a pin, or the path of an sdist or a checkout.

    Raises:
        Failure: there is nothing at the path, or a checkout lacks its submodules.
    """
    # With a GPU its CUDA parts are built, too.
    sha = hashlib.sha256(b"cuda" if gpu_present() else b"")
    for path in CMAKE_FILES:
        sha.update(path.read_bytes())
    if "==" in source:
        sha.update(source.encode())
    else:
        place = Path(source)
        if place.is_file():
            sha.update(place.read_bytes())
        elif (place / "setup.py").is_file():
            if not any((place / "third_party" / "gloo").glob("*")):
                raise Failure(
                    f"HOROVOD={source} lacks its submodules:"
                    f" git -C {shlex.quote(source)} submodule update --init --recursive"
                )
            sha.update(_commit(place).encode())
        else:
            raise Failure(f"HOROVOD={source} is neither an sdist nor a folder with setup.py")
    return sha.hexdigest()[:6]


def _commit(checkout: Path) -> str:
    """The commit and changes of a checkout, or the names, sizes and times of its files."""
    git = ["git", "-C", str(checkout)]
    done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        changes = subprocess.run([*git, "diff", "HEAD"], capture_output=True, check=False).stdout
        return done.stdout + hashlib.sha256(changes).hexdigest()
    # A build in the checkout does not make it another source.
    tops = (path for path in checkout.iterdir() if path.name not in leftovers(checkout))
    files = sorted(path for top in tops for path in (top, *top.rglob("*")) if path.is_file())
    stats = ((path.relative_to(checkout), path.stat()) for path in files)
    return repr([(str(name), stat.st_size, stat.st_mtime_ns) for name, stat in stats])
