"""Packed files with right checksums and wrong tables: one line when they are opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hvd_ext.data import PackedFile
from hvd_ext.data.__main__ import main
from hvd_ext.data.packed.layout import DamagedError, Field, Header, check_places
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import Arrays
from hvd_ext.errors import UsageError
from tests.support.data.crafted_packs import Crafted

Change = Callable[[Crafted], object]


def of_field(**values: object) -> Change:
    return lambda crafted: crafted.header["fields"][0].update(values)


def of_header(**values: object) -> Change:
    return lambda crafted: crafted.header.update(values)


def of_place(sample: int, column: int, value: int) -> Change:
    def change(crafted: Crafted) -> None:
        crafted.places[sample][column] = value

    return change


def of_footer(**values: int) -> Change:
    return lambda crafted: crafted.footer.update(values)


def raw(**sections: bytes) -> Change:
    return lambda crafted: crafted.raw.update(sections)


ARRAY = {"name": "x", "kind": "array", "dtype": "<i4", "shape": [5]}
CHANGES: dict[str, Change] = {
    "objects": of_field(dtype="|O"),
    "a record": of_field(dtype="i4,i4"),
    "texts": of_field(dtype="<U5"),
    "dates": of_field(dtype="<M8[s]"),
    "no dtype": of_field(dtype="nonsense"),
    "a long dtype": of_field(dtype="i" * 100_000),
    "a number as dtype": of_field(dtype=4),
    "another dtype": of_field(dtype="<i8"),
    "a negative shape": of_field(shape=[-5]),
    "two negative extents": of_field(shape=[-5, -1]),
    "a shape of fractions": of_field(shape=[5.0]),
    "a shape of truths": of_field(shape=[True] * 5),
    "a shape of texts": of_field(shape="5"),
    "a huge shape": of_field(shape=[2**62, 2**62]),
    "a huge shape of nothing": of_field(shape=[0, 2**62, 2**62]),
    "many dims": of_field(shape=[1] * 100 + [5]),
    "no shape": lambda crafted: crafted.header["fields"][0].pop("shape"),
    "one shape more": of_field(more=[5]),
    "no such kind": of_field(kind="pickle"),
    "a list as kind": of_field(kind=[]),
    "another kind": of_field(kind="pixels"),
    "bytes that are not last": lambda crafted: crafted.header["fields"].insert(
        0, {**ARRAY, "name": "y", "kind": "bytes"}
    ),
    "no name": of_field(name=""),
    "a number as name": of_field(name=7),
    "two of one name": lambda crafted: crafted.header["fields"].append(ARRAY),
    "no field": of_header(fields=[]),
    "a text as fields": of_header(fields="array"),
    "a number as fields": of_header(fields=1),
    "no samples": of_header(samples=0),
    "fewer samples": of_header(samples=3),
    "more samples": of_header(samples=2**62),
    "a fraction of samples": of_header(samples=4.0),
    "a truth as samples": of_header(samples=True),
    "negative samples": of_header(samples=-4),
    "classes of numbers": of_header(classes=[1, 2]),
    "a number as classes": of_header(classes=3),
    "a header that is a list": lambda crafted: setattr(crafted, "header", [1]),
    "a header that is no JSON": raw(header=b"{"),
    "a header that is no text": raw(header=b"\xff\xfe\xfd"),
    "a header that is deep": raw(header=b"[" * 100_000),
    "a header with a huge number": raw(header=b"9" * 5000),
    "a record in the header": of_place(0, 0, 0),
    "a record behind the end": of_place(3, 0, 2**40),
    "a record at the end of numbers": of_place(3, 0, 2**64 - 4096),
    "a record that is long": of_place(3, 1, 2**40),
    "a record as long as numbers": of_place(3, 1, 2**64 - 4096),
    "a record whose end wraps round": of_place(1, 0, 2**63 - 5),
    "a record that is short": of_place(1, 1, 19),
    "no record": of_place(1, 1, 0),
    "two records in one place": of_place(1, 0, 4096),
    "records that overlap": of_place(1, 0, 4096 + 19),
    "an index too short": raw(index=bytes(48)),
    "an index that ends within": raw(index=bytes(63)),
    "checks too few": raw(checks=bytes(12)),
    "checks that end within": raw(checks=bytes(15)),
    "records that begin late": of_footer(records=8192),
    "records that begin at once": of_footer(records=0),
    "an index before the records": of_footer(index=64),
    "an index behind the end": of_footer(index=2**64 - 1),
    "checks before the index": of_footer(checks=4096),
    "names behind the end": of_footer(names=2**63),
    "names within the checks": of_footer(names=4096 + 256),
}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packs") / "whole.pack"
    array = np.arange(20, dtype=np.int32).reshape(4, 5)
    pack(Arrays({"x": array}), path, lambda completed, note="", total=None: None)
    return path


def test_what_is_not_changed_is_the_same_file(path: Path) -> None:
    assert Crafted.of(path).encode()[:4096] == path.read_bytes()[:4096]
    crafted = Crafted.of(path)
    crafted.names = []
    assert crafted.encode() == path.read_bytes()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_wrong_table_is_one_line_when_it_is_opened(
    path: Path, tmp_path: Path, change: Change
) -> None:
    crafted = Crafted.of(path)
    change(crafted)
    (tmp_path / "a.pack").write_bytes(crafted.encode())
    with pytest.raises(UsageError, match="is not a packed file, or is cut off or damaged") as e:
        PackedFile(tmp_path / "a.pack")
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 500 + len(str(tmp_path))


@pytest.mark.parametrize(
    "names", [["one"], ["a", "b", "c", 4], {"a": 1}, "text", 4, [["a"]] * 4, None]
)
def test_wrong_names_are_one_line(path: Path, tmp_path: Path, names: object) -> None:
    crafted = Crafted.of(path)
    crafted.names = names
    (tmp_path / "a.pack").write_bytes(crafted.encode())
    with PackedFile(tmp_path / "a.pack") as file, pytest.raises(UsageError, match="the names"):
        file.name(0)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"\xff", b"9" * 5000])
def test_names_that_are_no_json_are_one_line(path: Path, tmp_path: Path, text: bytes) -> None:
    crafted = Crafted.of(path)
    crafted.raw["names"] = text
    (tmp_path / "a.pack").write_bytes(crafted.encode())
    with PackedFile(tmp_path / "a.pack") as file, pytest.raises(UsageError, match="the names"):
        file.name(0)


@pytest.mark.parametrize("shape", [(2, 2, 4), (2**63, 2**63, 2), (0, 2**63, 0), (2**64 - 1,) * 3])
def test_pixels_of_another_shape_are_one_line(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    class Image:
        fields, classes, names = (Field("image", "pixels"),), (), ["name\nof\x1b[2J two lines"]

        def __len__(self) -> int:
            return 1

        def __getitem__(self, sample: int) -> dict[str, np.ndarray]:
            return {"image": np.zeros((2, 2, 3), np.uint8)}

    path = tmp_path / "a.pack"
    pack(Image(), path, lambda completed, note="", total=None: None)
    crafted = Crafted.of(path)
    crafted.records[:24] = b"".join(extent.to_bytes(8, "little") for extent in shape)
    path.write_bytes(crafted.encode())
    with PackedFile(path) as file, pytest.raises(UsageError, match="is damaged: an image of") as e:
        file[0]
    assert str(e.value).isprintable()


def test_names_that_no_terminal_can_show_are_quoted(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crafted = Crafted.of(path)
    crafted.header["fields"][0]["name"] = "x\x1b[2J"
    crafted.header["classes"] = ["\ud800", "dog"]
    (tmp_path / "a.pack").write_bytes(crafted.encode())
    assert main(["info", str(tmp_path / "a.pack")]) == 0
    shown = capsys.readouterr().out
    assert "'x\\x1b[2J': array" in shown
    assert r"2 classes, '\ud800' to dog" in shown


def test_what_could_not_be_read_is_not_packed(tmp_path: Path) -> None:
    for fields in (
        (Field("a", "bytes"), Field("b", "array")),
        (Field("a", "array"), Field("a", "array")),
        (),
    ):
        with pytest.raises(UsageError):
            Header(2, fields)
    with pytest.raises(UsageError, match=r"field 'a' has the dtype '\|O': use one of numbers"):
        Field("a", "array", "|O")


def test_places_at_the_end_of_numbers_are_no_places(path: Path) -> None:
    """As of a sparse file of almost 2^63 bytes, which no file system here holds."""
    with PackedFile(path) as file:
        tables = file.tables
    end = 2**63 - 1
    huge = type(tables.footer)(end, 4096, end - 200, end - 100, end - 80, (0, 0, 0))
    places = tables.places.copy()
    places[2] = 2**62, 2**62 + 2**61
    with pytest.raises(DamagedError):
        check_places(tables.header, huge, places)
