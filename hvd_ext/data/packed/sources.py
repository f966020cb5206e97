"""Where samples come from before they are packed: folders of images, and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hvd_ext.data.packed.folders import SUFFIXES, find_classes, find_images
from hvd_ext.data.packed.images import decode_image
from hvd_ext.data.packed.layout import Field, printable
from hvd_ext.data.packed.names import require_unpackable
from hvd_ext.errors import UsageError

HDF5 = (".h5", ".hdf5", ".nc")


class Source(Protocol):
    """Anything that slices like an array: NumPy's, h5py.Dataset, zarr.Array, a procedure."""

    @property
    def shape(self) -> tuple[int, ...]:
        """`(samples, *shape of one)`."""

    @property
    def dtype(self) -> Any:
        """Type of the elements."""

    def __getitem__(self, index: tuple[slice, ...]) -> Any:
        """The block of one slice per dimension, each of step 1."""


class Samples(Protocol):
    """Samples that can be packed: `len(samples)`, and `samples[i]`, a dict of the fields.

    Several threads call it.

    Attributes:
        fields: fields of each sample; only the last one may vary in length.
        classes: list that the field "label" indexes; may be empty.
        names: names of the samples; may be empty.
        left_out: the source's other entries, in one line, or "".
    """

    fields: tuple[Field, ...]
    classes: tuple[str, ...]
    names: list[str]
    left_out: str

    def __len__(self) -> int: ...

    def __getitem__(self, sample: int) -> dict[str, Any]: ...


class ImageFolder:
    """The images of DIR, or of DIR/class and below, in the order of their names.

    Each image is decoded once, to find damaged ones.
    """

    def __init__(self, folder: Path, *, decoded: bool = False) -> None:
        """List a folder.

        Args:
            folder: DIR/image, or DIR/class/image, whose field "label" is then the class.
            decoded: keep pixels instead of the bytes of the files.

        Raises:
            UsageError: it holds no image, or a class without one.
        """
        self.folder, self._decoded = folder, decoded
        found = find_images(folder)
        if not found.names:
            found = find_classes(folder)
        if not found.names:
            raise UsageError(f"{folder} holds no image or class/image ({' '.join(SUFFIXES)})")
        self.classes = tuple(found.classes)
        self._labels = found.labels
        image = Field("image", "pixels" if decoded else "bytes")
        label = [Field("label", "array", "<i8")] if self.classes else []
        self.fields = (*label, image)
        self.names = found.names
        self.paths = [folder / name for name in found.names]
        self.left_out = found.describe_left_out()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, sample: int) -> dict[str, Any]:
        path = self.paths[sample]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        pixels = np.asarray(decode_image(data, path).convert("RGB"))
        values: dict[str, Any] = {"image": pixels if self._decoded else data}
        if self.classes:
            values["label"] = np.int64(self._labels[sample])
        return values


class Arrays:
    """Arrays of equal length: each sample's fields are the rows of the arrays at its number."""

    def __init__(self, arrays: Mapping[str, Source]) -> None:
        """Describe the samples; nothing is read yet.

        Raises:
            UsageError: there is no array, the numbers of rows differ, or elements are not numbers.
        """
        rows = {name: array.shape[0] if array.shape else 0 for name, array in arrays.items()}
        if not rows or len(set(rows.values())) > 1 or 0 in rows.values():
            raise UsageError(
                f"arrays with {rows or 'no'} samples: each array must have a row of every sample"
            )
        for name, array in arrays.items():
            if np.dtype(array.dtype).kind not in "fiub":
                raise UsageError(f"{name} is of {array.dtype}: only real numbers can be packed")
        self._arrays = dict(arrays)
        self._rows = next(iter(rows.values()))
        self.classes: tuple[str, ...] = ()
        self.names: list[str] = []
        self.left_out = ""
        self.fields = tuple(
            Field(name, "array", np.dtype(array.dtype).newbyteorder("<").str, array.shape[1:])
            for name, array in arrays.items()
        )

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, sample: int) -> dict[str, Any]:
        values = {}
        for name, array in self._arrays.items():
            index = (slice(sample, sample + 1), *(slice(0, n) for n in array.shape[1:]))
            values[name] = np.asarray(array[index])[0]
        return values


def open_samples(sources: list[str], *, decoded: bool = False) -> Samples:
    """Open the sources that `pack` is given.

    Args:
        sources: a folder of images or of .npy files, or NAME=FILE for each array, FILE
            being a .npy, HDF5:DATASET, or a zarr array.
        decoded: keep the pixels of images.

    Raises:
        UsageError: they cannot be read, or have names that `unpack` would refuse.
    """
    samples = _open_samples(sources, decoded=decoded)
    require_unpackable(printable(sources[0]), samples.fields, samples.names)
    return samples


def _open_samples(sources: list[str], *, decoded: bool) -> Samples:
    if all("=" in source for source in sources):
        arrays: dict[str, str] = {}
        for name, _, file in (source.partition("=") for source in sources):
            if name in arrays:
                raise UsageError(f"{name}={arrays[name]} and {name}={file}: give each its own name")
            arrays[name] = file
        return Arrays({name: open_source(file) for name, file in arrays.items()})
    if len(sources) > 1:
        raise UsageError(f"{sources}: give one folder, or NAME=FILE for each array")
    folder = Path(sources[0])
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give one, or NAME=FILE for each array")
    files = [path for path in sorted(folder.glob("*.npy")) if not path.name.startswith(".")]
    if files:
        return Arrays({path.stem: open_source(str(path)) for path in files})
    return ImageFolder(folder, decoded=decoded)


def open_source(file: str) -> Source:
    """Open an array: a .npy file, HDF5:DATASET, or the folder of a zarr array.

    Raises:
        UsageError: it cannot be read, or its library is not installed.
    """
    name, _, dataset = file.partition(":")
    kind = Path(name).suffix.lower()
    library = "h5py" if kind in HDF5 else "numpy" if kind == ".npy" else "zarr"
    try:
        source: Any
        if library == "numpy":
            source = np.load(name, mmap_mode="r", allow_pickle=False)
        elif library == "h5py":
            import h5py

            source = h5py.File(name, "r")[dataset]
        else:
            import zarr

            source = zarr.open(name, mode="r", path=dataset or None)
        # A group has no dtype.
        tuple(source.shape)
    except ImportError as error:
        raise UsageError(
            f"{file}: {library} is not installed: pip install {library}, or save it as .npy"
        ) from error
    except (OSError, KeyError, ValueError, EOFError, AttributeError) as error:
        raise UsageError(
            f"{file} is not an array that can be read ({error}): give FILE.npy, FILE.h5:DATASET, "
            "or the folder of a zarr array"
        ) from error
    return source
