"""Trainings as people write them, by each door: digests of what they end with.

Usage: recipes.py RECIPE ... or none for all. Rank 0 prints a line "door recipe digests", those of
all ranks.
"""

from __future__ import annotations

import faulthandler
import hashlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import hvd_ext.torch
from tests.support.training import recipes_of_networks, recipes_of_optimizers
from tests.support.training.recipe import Door

RECIPES: dict[str, Callable[[Door], Any]] = {
    name: function
    for module in (recipes_of_networks, recipes_of_optimizers)
    for name, function in vars(module).items()
    if callable(function) and getattr(function, "is_recipe", False)
}


def digest(value: Any, of: Any) -> None:
    """Add what has numbers to a hash."""
    if isinstance(value, torch.Tensor):
        of.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest(value[key], of)
    elif isinstance(value, (list, tuple)):
        for one in value:
            digest(one, of)
    elif hasattr(value, "state_dict"):
        digest(value.state_dict(), of)
    elif isinstance(value, float):
        of.update(value.hex().encode())


def doors() -> dict[str, Door]:
    ours = {
        "plain": Door(hvd_ext.torch, {}),
        "sharded": Door(hvd_ext.torch, {"sharded": True}),
    }
    try:
        import horovod.torch
    except ImportError:
        return ours
    return {"stock": Door(horovod.torch, {}), **ours}


def main() -> None:
    faulthandler.dump_traceback_later(500, exit=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    hvd = hvd_ext.torch
    hvd.init()
    for name in sys.argv[1:] or RECIPES:
        for kind, door in doors().items():
            torch.manual_seed(7)
            door.name = f"{name}.{kind}"
            found = hashlib.sha256()
            try:
                digest(RECIPES[name](door), found)
                result = found.hexdigest()[:16]
            except Exception as error:
                result = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            everyones = hvd.allgather_object(result)
            if hvd.rank() == 0:
                print(kind, name, *everyones, sep="\t", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
