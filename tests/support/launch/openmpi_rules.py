"""Open MPI's rules of coll/tuned, as Open MPI reads them."""

from __future__ import annotations


def read_openmpi_rules(text: str) -> dict[int, list[tuple[int, str]]]:
    """Rules by communicator size, as coll/tuned reads them: numbers, and # to the line's end."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    columns = 5 if lines[:1] == ["rule-file-version-2"] else 4
    try:
        numbers = list(map(int, " ".join(lines[columns == 5 :]).split()))
        collectives, collective, sizes = (numbers.pop(0) for _ in range(3))
        found = {}
        for _ in range(sizes):
            size, count = numbers.pop(0), numbers.pop(0)
            rules = [tuple(numbers.pop(0) for _ in range(columns)) for _ in range(count)]
            found[size] = [(rule[0], f"{rule[1]} {rule[3]}") for rule in rules]
    except (ValueError, IndexError) as error:
        raise ValueError(f"no rules of Open MPI's: {error}") from error
    starts = [[least for least, _ in rules] for rules in found.values()]
    if numbers or (collectives, collective) != (1, 2) or list(found) != sorted(found):
        raise ValueError("no rules of Open MPI's for allreduce alone, by ascending size")
    if any(start[:1] != [0] or start != sorted(set(start)) for start in starts):
        raise ValueError("rules of Open MPI's must begin at 0 bytes and ascend")
    return found
