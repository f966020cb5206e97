"""The parts of Horovod's interface that only Horovod serves: each is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from hvd_ext.errors import NotInstalledError

# Variables that request them, and the values that request nothing: DYNAMIC leaves the timeline to
# hvd.start_timeline().
_VARIABLES = ("HOROVOD_ELASTIC", "HOROVOD_AUTOTUNE", "HOROVOD_TIMELINE")
_NOTHING = ("", "0", "DYNAMIC")


def needs_horovod(what: str) -> NotInstalledError:
    """Return the error that refuses `what`, a part of the interface in the program's words."""
    return NotInstalledError(
        f"{what} needs Horovod, which is not installed: install Horovod as docs/start/install.md "
        "describes, or leave it out"
    )


def refuse_variables(environ: Mapping[str, str]) -> None:
    """Check that no variable requests elastic jobs, autotuning or a timeline.

    Raises:
        NotInstalledError: one does.
    """
    for name in _VARIABLES:
        if environ.get(name, "") not in _NOTHING:
            raise needs_horovod(f"{name}={environ[name]}")


class ProcessSet:
    """Some of the ranks; refused."""

    def __init__(self, ranks_or_comm: Any) -> None:
        del ranks_or_comm
        raise needs_horovod("hvd.ProcessSet")


def add_process_set(process_set: Any) -> NoReturn:
    """Refused: process sets need Horovod."""
    del process_set
    raise needs_horovod("hvd.add_process_set")


def remove_process_set(process_set: Any) -> NoReturn:
    """Refused: process sets need Horovod."""
    del process_set
    raise needs_horovod("hvd.remove_process_set")


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    """Refused: the timeline needs Horovod; `hvprof record` shows communication without it."""
    del file_path, mark_cycles
    raise needs_horovod("hvd.start_timeline")


def stop_timeline() -> NoReturn:
    """Refused: the timeline needs Horovod."""
    raise needs_horovod("hvd.stop_timeline")


class _Elastic:
    """Takes the place of the module horovod.torch.elastic."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise needs_horovod(f"hvd.elastic.{name}")


elastic = _Elastic()


def DistributedOptimizer(*arguments: Any, **named: Any) -> NoReturn:
    """Refused: Horovod's own optimizer, which serves requests that hvd_ext's does not."""
    del arguments, named
    raise needs_horovod("Horovod's DistributedOptimizer")
