"""Variables with reasons, the three presets, and their forms for shells. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from hvd_ext.errors import UsageError

# The configurations that Anthony et al. compare (MVAPICH2-GDR, EDSR, 512 GPUs).
PRESETS = {
    "mpi": "neither CUDA IPC nor the registration cache: the result of PyTorch's usual advice",
    "mpi-reg": "the registration cache, without CUDA IPC",
    "mpi-opt": "CUDA IPC and the registration cache",
}
FORMATS = ("sh", "json", "slurm")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Setting:
    """An environment variable for every rank.

    Attributes:
        value: its value.
        default: the value or behavior without it.
        why: the effect of the value on a training job.
        source: documentation of name, default and effect.
    """

    name: str
    value: str
    default: str
    why: str
    source: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"invalid variable name {self.name!r}: use letters, digits and _")
        if "\0" in self.value:
            raise UsageError(f"{self.name}={self.value!r}: no variable can hold a NUL")


def wants_ipc(preset: str) -> bool:
    return preset == "mpi-opt"


def wants_registration_cache(preset: str) -> bool:
    return preset != "mpi"


def render(settings: Iterable[Setting], form: str, title: str) -> str:
    """Format settings as one of FORMATS: lines for sh, JSON, or the head of a Slurm script."""
    settings = tuple(settings)
    if form == "json":
        return json.dumps({"title": title, "settings": [asdict(s) for s in settings]}, indent=2)
    lines = [f"# {title}"]
    if form == "slurm":
        lines.append("# Put this between the #SBATCH lines and srun, which hands it to all ranks.")
    for setting in settings:
        lines += [
            f"# {setting.why}",
            f"# default: {setting.default} ({setting.source})",
            f"export {assignment(setting.name, setting.value)}",
        ]
    return "\n".join(lines)


def assignment(name: str, value: str) -> str:
    """`NAME=value`, quoted for a POSIX shell."""
    return f"{name}={shlex.quote(value)}"
