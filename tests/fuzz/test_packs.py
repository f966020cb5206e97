"""Packed files that are damaged or crafted: the right data, or one line; never anything else."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest

from hvd_ext.data import PackedFile
from hvd_ext.data.__main__ import describe
from hvd_ext.data.packed.layout import Field
from hvd_ext.data.packed.pack import pack, unpack, verify
from hvd_ext.errors import HvdExtError
from tests.fuzz.damage import CASES, damaged
from tests.support.data.crafted_packs import Crafted

SAMPLES = 4
REFUSED = object()
# A case takes milliseconds: one that waits or computes for ever fails by this.
pytestmark = pytest.mark.timeout(60 + CASES)


class Samples:
    """Two arrays, and perhaps what varies in length: up to three blocks of it."""

    classes = ("cat", "dog")

    def __init__(self, last: str) -> None:
        self.fields = (Field("label", "array", "<i8"), Field("cube", "array", "<f4", (2, 3, 5)))
        if last != "array":
            self.fields += (Field("image", last),)  # type: ignore[arg-type]
        self.names = [f"{name}/{i}.png" for i in range(2) for name in self.classes]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> dict[str, Any]:
        rng = np.random.default_rng(sample)
        values: dict[str, Any] = {
            "label": np.int64(sample),
            "cube": rng.random((2, 3, 5), np.float32),
        }
        if self.fields[-1].kind == "bytes":
            values["image"] = rng.bytes((0, 100, 70_000, 1_200_000)[sample])
        elif self.fields[-1].kind == "pixels":
            values["image"] = rng.integers(0, 255, (7 + sample, 9, 3), np.uint8)
        return values


KINDS = ("array", "bytes", "pixels")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("packs")
    for kind in KINDS:
        pack(Samples(kind), folder / f"{kind}.pack", nothing)
    return {kind: folder / f"{kind}.pack" for kind in KINDS}


def nothing(completed: int, note: str = "", total: int | None = None) -> None:
    pass


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            same(found[name], expected[name]) for name in expected
        )
    if isinstance(expected, bytes):
        return bool(found == expected)
    return found.dtype == expected.dtype and np.array_equal(found, expected)


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns; REFUSED if it raises an error of the project, in one line."""
    try:
        return function(*arguments)
    except HvdExtError as error:
        message = str(error)
    assert len(message.splitlines()) == 1, repr(message)
    assert len(message) < 1000, repr(message)
    return REFUSED


def unpacked(file: PackedFile, base: Path) -> bool:
    """Unpack a file; returns whether that succeeded. What lies around the folder stays."""
    out = base / "around" / "out"
    rmtree(out.parent, ignore_errors=True)
    out.parent.mkdir()
    (out.parent / "file").write_text("as it was")
    done = attempt(unpack, file, out, nothing) is not REFUSED
    around = {path.name for path in out.parent.iterdir()} - {"out"}
    assert around == {"file"}
    assert (out.parent / "file").read_text() == "as it was"
    return done


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_pack_gives_what_was_packed_or_one_line(
    packs: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    whole, samples = packs[kind].read_bytes(), Samples(kind)
    expected = [samples[i] for i in range(SAMPLES)]
    path = tmp_path / "a.pack"
    refused = 0
    for seed in range(CASES):
        path.write_bytes(hurt(whole, seed))
        file = attempt(PackedFile, path)
        if file is REFUSED:
            refused += 1
            continue
        with file:
            values = [attempt(file.__getitem__, i) for i in range(len(file))]
            for got, right in zip(values, expected, strict=True):
                assert got is REFUSED or same(got, right), f"seed {seed}: other data"
            index = (slice(0, SAMPLES), *[slice(1, 2)] * 3)
            boxes = attempt(file.field("cube").__getitem__, index)
            if boxes is not REFUSED:
                right = np.stack([sample["cube"] for sample in expected])[index]
                assert same(boxes, right), f"seed {seed}: other data"
            verified = attempt(verify, file, nothing) is not REFUSED
            assert not (verified and REFUSED in values), f"seed {seed}: damage is not found"
            done = unpacked(file, tmp_path)
            assert not (done and REFUSED in values), f"seed {seed}: damage is unpacked"
            assert done or not verified, f"seed {seed}: not unpacked"
            if verified:
                assert [file.name(i) for i in range(SAMPLES)] == samples.names
    assert refused, "no case was refused"


def hurt(whole: bytes, seed: int) -> bytes:
    """Damage anywhere, in the header or in the tables."""
    begin, end = ((0, len(whole)), (0, 600), (len(whole) - 400, len(whole)))[seed % 3]
    return whole[:begin] + damaged(whole[begin:end], seed) + whole[end:]


HOSTILE: tuple[Any, ...] = (
    *(-1, 0, 1, 4, 5, 63, 64, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**400),
    *(0.5, 1e300, float("nan"), True, None, "", ".", "..", "/", "a\0b", "a\nb", "\ud800"),
    *("array", "bytes", "pixels", "|O", "|V8", "<U3", "<f2", ">i4", "<c16", "|b1", "<M8[s]"),
    *("i4,i4", "(2,)i4", [], {}, [[]], [-1], [0], [0, 2**62], [2**33, 2**33], [1] * 70, {"": 0}),
)
NAMES = (
    *("../file", "a/../../file", "out/../..", "x" * 300, "x\n" * 200, "d/" * 1500 + "x"),
    *("same", "./same", "a", "a/b", "a/b/c.png", " ", "-", "a.png/..", ".png", "\udc80"),
    *("e\u2028f", "\x1b[2J"),
)


def changed(value: Any, rng: random.Random) -> Any:
    """A value of JSON in which something else stands somewhere."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return rng.choice(HOSTILE + NAMES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key, edit = rng.choice(keys), rng.random()
    copy = value.copy()
    if edit < 0.1:
        del copy[key]
    elif edit < 0.2 and isinstance(copy, list):
        copy.insert(key, value[key])
    else:
        copy[key] = changed(value[key], rng)
    return copy


def craft(crafted: Crafted, rng: random.Random, around: Path) -> None:
    """Change one part of a packed file."""
    part = rng.choice(("header", "header", "names", "places", "place", "records", "raw", "footer"))
    sample = rng.randrange(len(crafted.places)) if crafted.places else 0
    if part == "header":
        crafted.header = changed(crafted.header, rng)
    elif part == "names":
        if rng.random() < 0.5 and isinstance(crafted.names, list) and crafted.names:
            name = rng.choice((*NAMES, str(around / "file"), str(around / "new")))
            crafted.names[rng.randrange(len(crafted.names))] = name
        else:
            crafted.names = changed(crafted.names, rng)
    elif part == "places" and crafted.places:
        places = crafted.places
        rng.choice((places.reverse, places.pop, lambda: places.append(places[sample])))()
    elif part == "place" and crafted.places:
        numbers = [n for n in HOSTILE if type(n) is int and 0 <= n < 2**64 - 8192]
        near = crafted.places[sample][rng.randrange(2)] + rng.choice((-64, -1, 1, 64))
        crafted.places[sample] = list(crafted.places[sample])
        crafted.places[sample][rng.randrange(2)] = rng.choice((*numbers, max(0, near)))
    elif part == "records":
        begin = max(0, crafted.places[sample][0] - 4096) if crafted.places else 0
        at = begin + rng.choice((0, 64, 128, 192, 256)) + 8 * rng.randrange(3)
        number = rng.choice([n for n in HOSTILE if type(n) is int and 0 <= n < 2**64])
        crafted.records[at : at + 8] = number.to_bytes(8, "little")
    elif part == "raw":
        name = rng.choice(("header", "index", "checks", "names"))
        crafted.raw[name] = rng.choice(
            (b"", b"[" * 5000, b"\xff" * 64, rng.randbytes(16), bytes(64))
        )
    else:
        name = rng.choice(("records", "index", "checks", "names", "file_bytes"))
        numbers = [n for n in HOSTILE if type(n) is int and 0 <= n < 2**64]
        crafted.footer[name] = rng.choice((*numbers, 4096, 8192))


@pytest.mark.parametrize("kind", KINDS)
def test_a_crafted_pack_gives_what_its_checksums_vouch_for_or_one_line(
    packs: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    whole = Crafted.of(packs[kind])
    path, around = tmp_path / "a.pack", tmp_path / "around"
    opened = 0
    for seed in range(CASES):
        rng, crafted = random.Random(seed), deepcopy(whole)
        for _ in range(rng.randint(1, 2)):
            craft(crafted, rng, around)
        content = crafted.encode()
        path.write_bytes(content)
        file = attempt(PackedFile, path)
        if file is REFUSED:
            continue
        opened += 1
        with file:
            describe(file)
            values = [attempt(file.__getitem__, i) for i in range(len(file))]
            for got, (begin, length) in zip(values, file.tables.places.tolist(), strict=True):
                if got is not REFUSED:
                    assert vouched(file, got, content[begin : begin + length]), f"seed {seed}"
            for field in file.header.fields:
                if field.kind == "array" and REFUSED not in values:
                    whole_field = tuple(slice(0, n) for n in file.field(field.name).shape)
                    found = file.field(field.name)[whole_field]
                    right = np.stack([value[field.name] for value in values])
                    assert found.tobytes() == right.tobytes(), f"seed {seed}"
            done = unpacked(file, tmp_path)
            assert not (done and REFUSED in values), f"seed {seed}: damage is unpacked"
            if done:
                files = [p for p in (around / "out").rglob("*") if p.is_file()]
                last = file.header.fields[-1].kind
                expected = len(file.header.fields) if last == "array" else len(file)
                assert len(files) == expected, f"seed {seed}: {files}"
                if last == "bytes":
                    wanted = sorted(value[file.header.fields[-1].name] for value in values)
                    assert sorted(p.read_bytes() for p in files) == wanted, f"seed {seed}"
    assert opened, "no case was opened"


def vouched(file: PackedFile, values: dict[str, Any], record: bytes) -> bool:
    """Whether values are what the bytes of a record say."""
    begin = 0
    for field in file.header.fields:
        found = values[field.name]
        if field.kind == "array":
            count = int(np.dtype(field.dtype).itemsize * np.prod(field.shape, dtype=object))
            if found.shape != field.shape or found.tobytes() != record[begin : begin + count]:
                return False
            begin = -(-(begin + count) // 64) * 64
        elif field.kind == "bytes":
            return bool(found == record[begin:])
        else:
            shape = tuple(
                int.from_bytes(record[begin + k : begin + k + 8], "little") for k in (0, 8, 16)
            )
            return bool(found.shape == shape and found.tobytes() == record[begin + 64 :])
    return True
