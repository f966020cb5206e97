"""A packed file against the folder it was made of, and look-ahead against reading in the step.

Each contender loads the same images in the same random order by the same loader, on as many
threads. Cold: no page of the files is in this kernel's page cache, which bytes read from the
disk confirm (a hypervisor may cache below); warm: all are. Look-ahead is timed on a disk that
is slowed: the reader sleeps as long as such a disk would take. The store's ranks read from one
node's memory, or act as two nodes and send each other half of all samples.
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import harness
from benchmarks.data_loading import kept_samples
from hvd_ext.arithmetic.statistics import gain
from hvd_ext.cli import at_least, progress
from hvd_ext.data import DataLoader, Dataset, Order, PackedFile
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import Arrays, ImageFolder
from hvd_ext.units import MIB
from testbed import timing
from testbed.ranks import hvd_launch, launch

_HEIGHT, _WIDTH, _QUALITY = 375, 500, 90  # of ImageNet's usual image
_BATCH, _THREADS = 16, 2
_STEPS = 12
_READ_S = 0.01
_WORK = bytes(16 * MIB)


def main(arguments: Sequence[str]) -> int:
    """Time all of it."""
    parser = harness.parser("data_loading", __doc__, "--json F", rounds=7)
    parser.add_argument("--images", type=at_least(_BATCH), default=640, help="(640)")
    parser.add_argument(
        "--samples", type=at_least(16), default=256, help="of 1 MiB, for the store (256)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to time"
    )
    parser.add_argument("--kept", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        path, local_size = options.kept
        kept_samples.epochs(Path(path), options.rounds, int(local_size))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        root = Path(name)
        result = {
            # Where decoding dominates, the gain of reading is within the variation of rounds.
            **_packed(root, options.images, 3 * options.rounds),
            **_look_ahead(options.rounds),
            **_kept(root, options.samples, options.rounds),
        }
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _packed(root: Path, images: int, rounds: int) -> dict[str, Any]:
    (root / "folder").mkdir()
    rng = np.random.default_rng(0)
    for number in range(images):
        # Smooth enough to be compressed as photographs are.
        small = rng.integers(0, 255, (_HEIGHT // 5, _WIDTH // 5, 3), np.uint8)
        image = Image.fromarray(small).resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC)
        image.save(root / "folder" / f"{number:05}.jpg", quality=_QUALITY)
    folder = ImageFolder(root / "folder")
    for name, decoded in (("encoded", False), ("decoded", True)):
        source = ImageFolder(root / "folder", decoded=decoded)
        with progress("packing", shown=False) as advance:
            pack(source, root / f"{name}.pack", advance)
    files = {
        "folder": folder.paths,
        "encoded": [root / "encoded.pack"],
        "decoded": [root / "decoded.pack"],
    }
    datasets: dict[str, Dataset] = {
        "folder": _Calls(lambda i: {"image": folder.paths[i].read_bytes()}),
        "encoded": PackedFile(root / "encoded.pack"),
        "decoded": PackedFile(root / "decoded.pack"),
    }
    for i in range(images):
        data, encoded, decoded = (dataset[i]["image"] for dataset in datasets.values())
        if not (data == encoded and np.array_equal(decoded, _decode(data))):
            raise harness.BenchmarkError(f"image {i} of the packed files is not the folder's")

    # (contender, cold or warm, decoded or only read) -> seconds of each round
    times: dict[tuple[str, str, str], list[float]] = {}
    for number in range(rounds):
        for cache in ("cold", "warm"):
            for work in ("read", "decode"):
                # Each round in another order: what went before leaves its marks.
                for name in random.Random(number).sample(list(datasets), len(datasets)):
                    if (name, work) == ("decoded", "read"):
                        continue  # it is the same as "decode": nothing is left to decode
                    decodes = work == "decode" and name != "decoded"
                    with _cache(cache, files[name]):
                        began_s = time.perf_counter()
                        _load_all(datasets[name], images, _decode_image if decodes else None)
                        took_s = time.perf_counter() - began_s
                    times.setdefault((name, cache, work), []).append(took_s)
    figures = [
        {"contender": n, "cache": c, "work": w, "s": timing.summary(t)}
        for (n, c, w), t in times.items()
    ]
    spread = {
        f"packed_vs_folder_{name}_{cache}{'' if work == 'decode' else '_reading_alone'}": _compared(
            times["folder", cache, work], times[name, cache, work]
        )
        for name in ("encoded", "decoded")
        for cache in ("cold", "warm")
        for work in ("read", "decode")
        if name == "encoded" or work == "decode"
    }
    sizes = {name: sum(p.stat().st_size for p in paths) for name, paths in files.items()}
    ratios = {name: value["ratio"] for name, value in spread.items()}
    told = {"images": images, "threads": _THREADS, "file_bytes": sizes, "times": figures}
    return {**ratios, "packed": {**told, "ratios": spread}}


def _compared(folder: Sequence[float], packed: Sequence[float]) -> dict[str, Any]:
    """How many times as fast, by medians; the rounds' spread; and what their pairs prove."""
    rounds = [f / p for f, p in zip(folder, packed, strict=True)]
    return {
        "ratio": timing.ratio(folder, packed),
        "rounds": timing.summary(rounds),
        "pairs": asdict(gain(folder, packed)),
    }


def _load_all(dataset: Dataset, images: int, transform: Callable[..., Any] | None) -> None:
    loader = DataLoader(
        dataset,
        _BATCH,
        Order(images, 1),
        transform=transform,
        collate_fn=len,
        num_workers=_THREADS,
    )
    for _ in loader:
        pass
    loader.close()


class _Calls:
    """A dataset whose samples a function reads."""

    def __init__(self, load: Callable[[int], Any]) -> None:
        self._load = load

    def __getitem__(self, sample: int) -> Any:
        return self._load(sample)


def _decode(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def _decode_image(sample: dict[str, Any], _rng: np.random.Generator) -> Any:
    return _decode(sample["image"])


@contextmanager
def _cache(state: str, files: Sequence[Path]) -> Iterator[None]:
    """Empty the page cache of the files, or fill it, and see that the block met it so."""
    for path in files:
        kept_samples.set_cache(state, path)
    before = kept_samples.disk_bytes()
    yield
    came, expected = kept_samples.disk_bytes() - before, sum(path.stat().st_size for path in files)
    if (state == "warm" and came > 0.02 * expected) or (state == "cold" and came < 0.9 * expected):
        raise harness.BenchmarkError(
            f"the page cache was not {state}: {came} of {expected} bytes came from the disk: name "
            "a --folder on a disk, with memory to spare"
        )


def _look_ahead(rounds: int) -> dict[str, Any]:
    """Time a step whose reading waits and whose computing works, with and without look-ahead."""
    found: dict[str, Any] = {}
    for title, read_s, pieces in (
        ("reading", 4 * _READ_S, 1),
        ("computing", _READ_S, 3),
        ("both", 2 * _READ_S, 2),
    ):
        ways = {
            "read_s": (read_s, 0, 0),
            "compute_s": (0, pieces, 0),
            "without_s": (read_s, pieces, 0),
            "step_s": (read_s, pieces, 2),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, settings in ways.items():
                times[way].append(_steps(*settings))
        parts = [times["read_s"], times["compute_s"]]
        longer = max(parts, key=statistics.median)
        both = [sum(pair) for pair in zip(*parts, strict=True)]
        found[title] = {
            **{way: timing.summary(seconds) for way, seconds in times.items()},
            "step_over_longer_part": timing.ratio(times["step_s"], longer),
            "without_over_sum": timing.ratio(times["without_s"], both),
        }
    worst = max(case["step_over_longer_part"] for case in found.values())
    return {"lookahead_step_over_longer_part": worst, "look_ahead": found}


def _steps(read_s: float, pieces: int, ahead: int) -> float:
    """Median seconds of a step of one sample."""

    def read(sample: int) -> int:
        time.sleep(read_s)
        return sample

    loader = DataLoader(_Calls(read), 1, Order(1000, 1), num_workers=1, prefetch_factor=ahead)
    times_s = []
    for _ in range(_STEPS):
        began_s = time.perf_counter()
        next(loader)
        for _ in range(pieces):
            # One core's work, without the GIL, as most of a training step is.
            zlib.crc32(_WORK)
        times_s.append(time.perf_counter() - began_s)
    loader.close()
    # The first steps have nothing read ahead yet.
    return float(np.median(times_s[3:]))


def _kept(root: Path, samples: int, rounds: int) -> dict[str, Any]:
    """Time two ranks whose samples a store keeps: on one node, and as two nodes."""
    path = root / "kept.pack"
    array = np.random.default_rng(0).integers(0, 256, (samples, MIB), np.uint8)
    with progress("packing", shown=False) as advance:
        pack(Arrays({"x": array}), path, advance)
    found = {}
    for title, local_size in (("one_node", 2), ("between_nodes", 1)):
        words = ["--kept", str(path), str(local_size), "--rounds", str(rounds)]
        found[title] = launch("benchmarks.data_loading", 2, words, start=hvd_launch(2))
    ratios = {
        f"store_vs_{cache}_rereading{suffix}": found[title][f"over_{cache}"]["ratio"]
        for title, suffix in (("one_node", ""), ("between_nodes", "_between_nodes"))
        for cache in ("cold", "warm")
    }
    return {**ratios, "store": {"samples": samples, **found}}


def _print(result: dict[str, Any]) -> None:
    columns = ("packed against folder", "times as fast", "middle half of rounds", "95 % interval")
    rows = []
    for name, value in result["packed"]["ratios"].items():
        low, high = value["rounds"]["low"], value["rounds"]["high"]
        words = name.removeprefix("packed_vs_folder_").replace("_", " ")
        pairs = f"{value['pairs']['low']:.2f} .. {value['pairs']['high']:.2f}"
        rows.append((words, f"{value['ratio']:.2f}", f"{low:.2f} .. {high:.2f}", pairs))
    title = f"{result['packed']['images']} images, {_THREADS} threads"
    harness.print_table(title, columns, rows, width=100)

    parts = ("longer part", "look-ahead 2: over that part", "none: over the sum")
    keys = ("step_over_longer_part", "without_over_sum")
    ratios = (
        (name, *(f"{case[key]:.2f}" for key in keys)) for name, case in result["look_ahead"].items()
    )
    harness.print_table("a step against its parts, on a slowed disk", parts, ratios, width=100)

    rows = []
    for name in ("one_node", "between_nodes"):
        for cache in ("cold", "warm"):
            value = result["store"][name][f"over_{cache}"]
            spread = f"{value['rounds']['low']:.2f} .. {value['rounds']['high']:.2f}"
            rows.append((name.replace("_", " "), cache, f"{value['ratio']:.2f}", spread))
    title = f"a store of {result['store']['samples']} MiB against reading again, 2 ranks"
    columns = ("ranks", "file", "times as fast", "middle half of rounds")
    harness.print_table(title, columns, rows, left=2, width=100)


if __name__ == "__main__":
    harness.run(main, "benchmarks.data_loading")
