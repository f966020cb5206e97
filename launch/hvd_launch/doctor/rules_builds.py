"""Whether torch, MPI and what was built against them still belong together. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from hvd_launch.doctor.model import OK, WRONG, Finding, Snapshot


def _torch(seen: Snapshot) -> Iterator[Finding]:
    """Horovod's library is bound to the torch that it was compiled with."""
    built, torch = seen.builds.get("horovod_for"), seen.builds.get("torch")
    if not built or not torch:
        return
    if built == torch:
        yield Finding("Horovod's torch", OK, f"Horovod was built for the installed torch {torch}")
    else:
        yield Finding(
            "Horovod's torch",
            WRONG,
            f"Horovod was built for torch {built}, and torch {torch} is installed",
            "Horovod cannot be imported, crashes, or reads tensors wrongly",
            _remedy(seen),
        )


def _replaced(seen: Snapshot) -> Iterator[Finding]:
    """An environment of `make env` is known to work with the versions that it was made with."""
    replaced = seen.builds.get("replaced", {})
    if replaced:
        pairs = (f"{name} {was} -> {now}" for name, (was, now) in sorted(replaced.items()))
        yield Finding(
            "environment",
            WRONG,
            f"replaced since `make env`: {', '.join(pairs)}",
            "what was compiled against the old version may fail with the new one",
            _remedy(seen),
        )


def _remedy(seen: Snapshot) -> str:
    if checkout := seen.builds.get("checkout"):
        return f"make -C {shlex.quote(checkout)} env"
    return str(seen.builds.get("build"))


RULES: tuple[Callable[[Snapshot], Iterator[Finding]], ...] = (_torch, _replaced)
