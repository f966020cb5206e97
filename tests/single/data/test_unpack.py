"""Packed files are taken apart within the folder that was named, whatever they name."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hvd_ext.data.__main__ import main
from hvd_ext.data.packed.layout import Field
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import Arrays, ImageFolder
from hvd_ext.errors import UsageError
from testbed.ranks import ROOT, environment


def nothing(completed: int, note: str = "", total: int | None = None) -> None:
    pass


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(1).integers(0, 255, (20, 30, 3), np.uint8)
    for name, ending in (("cat", "png"), ("dog", "jpg")):
        (root / name).mkdir()
        for i in range(3):
            Image.fromarray(noise + np.uint8(i)).save(root / name / f"{i}.{ending}")
    return root


def test_a_name_that_leads_out_of_the_folder_is_not_unpacked(classes: Path, tmp_path: Path) -> None:
    folder = ImageFolder(classes)
    folder.names[5] = "../escaped.jpg"
    pack(folder, tmp_path / "i.pack", nothing)
    with pytest.raises(UsageError, match=r"'\.\./escaped\.jpg', which is no file within"):
        main(["unpack", str(tmp_path / "i.pack"), str(tmp_path / "out")])
    assert not (tmp_path / "escaped.jpg").exists()


@pytest.mark.parametrize(
    "name", ["../x", "{out}/../x", "../..", ".", "", "a/../../x", "link", "l/x", "a\0b", "\ud800"]
)
@pytest.mark.parametrize("decoded", [False, True], ids=["bytes", "pixels"])
def test_no_sample_is_unpacked_out_of_the_folder(
    classes: Path, tmp_path: Path, name: str, decoded: bool
) -> None:
    folder = ImageFolder(classes, decoded=decoded)
    folder.names[5] = name.replace("{out}", str(tmp_path / "out"))
    folder_with_links(tmp_path)
    pack(folder, tmp_path / "i.pack", nothing)
    nothing_is_written(tmp_path, "i.pack")


@pytest.mark.parametrize(
    "name", ["../x", "{out}/../x", "a/../../x", "link", "l/x", "a\0b", "\ud800"]
)
def test_no_array_is_unpacked_out_of_the_folder(tmp_path: Path, name: str) -> None:
    out = folder_with_links(tmp_path)
    (out / "link.npy").symlink_to(tmp_path / "victim")
    name = name.replace("{out}", str(out))
    arrays = {"right": np.zeros((2, 3)), name: np.zeros((2, 3))}
    pack(Arrays(arrays), tmp_path / "a.pack", nothing)
    nothing_is_written(tmp_path, "a.pack")


def nothing_is_written(tmp_path: Path, file: str) -> None:
    before = set(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"no file within .*: nothing is unpacked"):
        main(["unpack", str(tmp_path / file), str(tmp_path / "out")])
    assert set(tmp_path.rglob("*")) == before
    assert (tmp_path / "victim").read_text() == "as it was"


def folder_with_links(tmp_path: Path) -> Path:
    """A folder that holds links to what lies outside."""
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "victim").write_text("as it was")
    for name in ("link", "link.png"):
        (out / name).symlink_to(tmp_path / "victim")
    (out / "l").symlink_to(tmp_path)
    return out


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a\nb.jpg", "holds control characters"),
        ("d/" * 1500 + "x", "lies in more than 100 folders"),
    ],
)
def test_a_name_that_no_line_shows_or_no_folder_holds_is_not_unpacked(
    classes: Path, tmp_path: Path, name: str, problem: str
) -> None:
    folder = ImageFolder(classes)
    folder.names[5] = name
    pack(folder, tmp_path / "i.pack", nothing)
    with pytest.raises(UsageError, match=f"which {problem}: nothing is unpacked") as error:
        main(["unpack", str(tmp_path / "i.pack"), str(tmp_path / "out")])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_samples_of_one_name_do_not_replace_each_other(classes: Path, tmp_path: Path) -> None:
    folder = ImageFolder(classes, decoded=True)
    folder.names[4] = "cat/./0.jpg"
    pack(folder, tmp_path / "i.pack", nothing)
    with pytest.raises(
        UsageError, match=r"'cat/\./0\.jpg', which is where another file of it goes: nothing"
    ):
        main(["unpack", str(tmp_path / "i.pack"), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_pixels_that_are_no_image_are_one_line(tmp_path: Path) -> None:
    class Deep:
        fields, classes, names = (Field("x", "pixels"),), (), ("a.png",)

        def __len__(self) -> int:
            return 1

        def __getitem__(self, sample: int) -> dict[str, np.ndarray]:
            return {"x": np.zeros((4, 4, 7), np.uint8)}

    pack(Deep(), tmp_path / "d.pack", nothing)
    with pytest.raises(UsageError, match=r"sample 0 of shape \(4, 4, 7\) cannot be written as PNG"):
        main(["unpack", str(tmp_path / "d.pack"), str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("sources", "problem"),
    [
        (["x=a.npy", "x=b.npy"], "x=a.npy and x=b.npy: give each its own name"),
        (["../x=a.npy"], r"'\.\./x\.npy', which is no file within the folder: rename it"),
        (["=a.npy"], "a field is named ''"),
        (["a\nb=a.npy"], r"'a\\nb\.npy', which holds control characters: rename it"),
        (["lines"], r"'a\\nb\.png', which holds control characters: rename it"),
        (["twins", "--decoded"], r"'a\.png', which is where another file of it goes: rename it"),
    ],
)
def test_names_that_cannot_be_unpacked_are_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("a", 1), ("b", 2)):
        np.save(f"{name}.npy", np.full((2, 3), value))
    for path in ("lines/a\nb.png", "twins/a.png", "twins/a.jpg"):
        Path(path).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    with pytest.raises(UsageError, match=problem) as error:
        main(["pack", *sources, "-o", "out.pack"])
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("*.pack"))
    # Encoded images keep their endings.
    assert main(["pack", "twins", "-o", "twins.pack"]) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_command_that_is_ended_leaves_no_part_of_a_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    # It has no blocks on the disk.
    np.lib.format.open_memmap(tmp_path / "long.npy", "w+", np.uint8, (1 << 14, 1 << 20))
    command = [sys.executable, "-m", "hvd_ext.data", "pack", "x=long.npy", "-o", "long.pack"]
    packing = subprocess.Popen(
        command, cwd=tmp_path, env=environment() | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE
    )
    try:
        while not list(tmp_path.glob(".long.*.part.pack")):
            assert packing.poll() is None
            time.sleep(0.01)
        packing.send_signal(number)
        assert packing.wait(60) != 0
    finally:
        packing.kill()
        packing.communicate()
    assert [path.name for path in tmp_path.iterdir()] == ["long.npy"]
