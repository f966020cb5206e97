"""Rules for torch, MPI and the packages that were built against them. Pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator

from hvd_ext.units import counted
from hvd_launch.doctor.model import NOTE, OK, WRONG, Finding, Snapshot


def _torch(seen: Snapshot) -> Iterator[Finding]:
    """Check that Horovod's library was compiled with the installed torch."""
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
    """Check that an environment of `make env` has the versions with which it was made."""
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


def _recorder(seen: Snapshot) -> Iterator[Finding]:
    """Check that hvprof's recorder was built, and records programs of this MPI library."""
    if not seen.recorder:
        return
    impact, again = "hvprof records no job of this MPI", f"{shlex.quote(sys.executable)} -m pip"
    remedy = f"{again} install --force-reinstall --no-deps . in hvd_ext's checkout"
    if "error" in seen.recorder:
        yield Finding("recorder", WRONG, seen.recorder["error"], impact, remedy)
        return
    path, said = seen.recorder["path"], seen.recorder.get("said")
    if said is None:
        yield Finding("recorder", NOTE, f"{path}; not tried, as no job of several ranks started")
        return
    library = seen.library.title if seen.library else "this MPI"
    if said == f"{counted(seen.asked, 'rank')} recorded":
        yield Finding("recorder", OK, f"{said} with {library}, by {path}")
    else:
        few = said if said[:1].isdecimal() else "nothing recorded"
        evidence = f"{few} of {counted(seen.asked, 'rank')}: {path} is not for {library}"
        yield Finding("recorder", WRONG, evidence, impact, remedy)


def _remedy(seen: Snapshot) -> str:
    if checkout := seen.builds.get("checkout"):
        return f"make -C {shlex.quote(checkout)} env"
    return str(seen.builds.get("build"))


RULES: tuple[Callable[[Snapshot], Iterator[Finding]], ...] = (_torch, _replaced, _recorder)
