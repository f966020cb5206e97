"""Trainings as people write them: the bits of stock Horovod's on 2 ranks, by every door."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.support.launch.launching import WITHOUT_HOROVOD

PROGRAM = "tests/programs/training/recipes.py"
# Looks at whole parameters.
REFUSED_SHARDED = {"lbfgs": "UsageError: sharded=True: LBFGS cannot update a part of a parameter"}


def results(done) -> dict[str, dict[str, list[str]]]:
    """By door and recipe, the digest or the error of each rank."""
    assert done.returncode == 0, done.stdout
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for line in done.stdout.splitlines():
        # The launcher puts the rank before each line.
        door, *rest = line.removeprefix("[0] ").split("\t")
        if rest:
            found[door][rest[0]] = rest[1:]
    return found


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_trainings_end_as_with_stock_horovod(launch):
    with_horovod = results(launch(2, [PROGRAM], timeout=600))
    without = results(launch(2, [PROGRAM], env=WITHOUT_HOROVOD, timeout=600))
    stock = with_horovod.pop("stock")
    assert len(stock) >= 30
    errors = {name: found for name, found in stock.items() if "Error" in found[0]}
    assert not errors
    doors = {f"{door}, with Horovod": found for door, found in with_horovod.items()}
    doors |= {f"{door}, without Horovod": found for door, found in without.items()}
    assert len(doors) == 4
    others = []
    for door, found in doors.items():
        for name, wanted in stock.items():
            refusal = REFUSED_SHARDED.get(name) if "sharded" in door else None
            if refusal:
                same = all(text.startswith(refusal) for text in found[name])
            else:
                same = found[name] == wanted
            if not same:
                others.append(f"{name}, {door}: {found.get(name)} instead of {wanted}")
    assert not others, "\n".join(others)
