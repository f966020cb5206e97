"""The images of a folder, or of a folder of classes, as torchvision's ImageFolder finds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hvd_ext.errors import UsageError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass
class Found:
    """The images of a folder.

    Attributes:
        names: names of the images, relative to the folder, in order.
        classes: names of the class folders, in order; empty if the images are in the folder itself.
        labels: number of each image's class.
        left_out: names of the other entries by kind, relative to the folder.
    """

    names: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def describe_left_out(self) -> str:
        """Describe the other entries in one line, or ""."""
        return "; ".join(
            f"{kind}: {len(names)} (such as {names[0]!r:.80})"
            for kind, names in sorted(self.left_out.items())
        )


def find_images(folder: Path) -> Found:
    """List the images in a folder itself; there may be none."""
    found = Found()
    for entry in _entries(folder, "", found):
        if entry.is_dir():
            found.left_out.setdefault("folders", []).append(entry.name)
        elif _is_image(entry, entry.name, found):
            found.names.append(entry.name)
    return found


def find_classes(folder: Path) -> Found:
    """List the images of each class folder and of the folders in it.

    Raises:
        UsageError: a class folder holds no image.
    """
    found = Found()
    for entry in _entries(folder, "", found):
        if not entry.is_dir():
            found.left_out.setdefault("files outside of the class folders", []).append(entry.name)
            continue
        names = list(_walk(folder, entry.name, found, frozenset()))
        if not names:
            raise UsageError(
                f"the class folder {folder / entry.name} holds no image ({' '.join(SUFFIXES)}): "
                "remove it, or it would be a class"
            )
        found.names += names
        found.labels += [len(found.classes)] * len(names)
        found.classes.append(entry.name)
    return found


def _walk(root: Path, below: str, found: Found, above: frozenset[str]) -> Iterator[str]:
    """List the names of the images of a folder and its subfolders, following links."""
    real = os.path.realpath(root / below)
    if real in above:  # a link to a folder that contains the link
        return
    for entry in _entries(root, below, found):
        name = f"{below}/{entry.name}"
        if entry.is_dir():
            yield from _walk(root, name, found, above | {real})
        elif _is_image(entry, name, found):
            yield name


def _entries(root: Path, below: str, found: Found) -> Iterator[os.DirEntry[str]]:
    """List a folder's entries by name, without hidden ones, which other programs write."""
    try:
        with os.scandir(root / below) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"cannot list {root / below}: {error.strerror}") from error
    for entry in listed:
        if entry.name.startswith("."):
            name = f"{below}/{entry.name}".lstrip("/")
            found.left_out.setdefault("hidden entries", []).append(name)
        else:
            yield entry


def _is_image(entry: os.DirEntry[str], name: str, found: Found) -> bool:
    suffixed = entry.name.lower().endswith(SUFFIXES)
    if suffixed and entry.is_file():
        return True
    kind = "names of images that are no files" if suffixed else "files with other suffixes"
    found.left_out.setdefault(kind, []).append(name)
    return False
