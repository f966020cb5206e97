"""`python -m hvd_ext.data`: make, describe, check, take apart and plan to read packed files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hvd_ext.cli import (
    add_version,
    at_least,
    exit_on_sigterm,
    output_file,
    progress,
    run,
    size_bytes,
)
from hvd_ext.data.packed.layout import printable
from hvd_ext.data.packed.pack import pack, unpack, verify
from hvd_ext.data.packed.packed import PackedFile
from hvd_ext.data.packed.sources import open_samples
from hvd_ext.data.plan import reading_plan
from hvd_ext.system.node_memory import free_bytes
from hvd_ext.units import counted, format_bytes

PROGRAM = "hvd_ext.data"
_EXAMPLES = {
    "pack": "pack photographs/train -o train.pack\n"
    "  python -m hvd_ext.data pack cubes=cubes.h5:/cubes labels=labels.npy -o universes.pack",
    "info": "info train.pack",
    "verify": "verify train.pack",
    "unpack": "unpack train.pack photographs",
    "plan": "plan train.pack --nodes 8 --memory 200GiB --disk 1000GB",
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description="One file with all samples of a data set, whose every MiB has a checksum.",
        epilog=f"example:\n  python -m {PROGRAM} {_EXAMPLES['pack']}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(top)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, what: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=what,
            description=what,
            epilog=f"example:\n  python -m {PROGRAM} {_EXAMPLES[name]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.add_argument("--json", action="store_true", help="print the result as JSON")
        return made

    cli = command("pack", "write samples to one file; each image is decoded once, as a check")
    cli.add_argument(
        "source",
        nargs="+",
        metavar="SOURCE",
        help="folder of images, of classes of images or of .npy files; or NAME=FILE for each "
        "array: FILE.npy, FILE.h5:DATASET, or the folder of a zarr array",
    )
    cli.add_argument("-o", "--output", type=output_file, required=True, metavar="FILE")
    cli.add_argument(
        "--decoded",
        action="store_true",
        help="keep pixels instead of encoded images: no decoding later, several times the bytes",
    )
    command("info", "describe a file").add_argument("file", type=Path, metavar="FILE")
    command("verify", "read all of a file, and check it").add_argument(
        "file", type=Path, metavar="FILE"
    )
    cli = command("unpack", "write images as files, and arrays as .npy files")
    cli.add_argument("file", type=Path, metavar="FILE")
    cli.add_argument("folder", type=Path, metavar="DIR", help="output folder")
    cli = command("plan", "print a file's memory on a number of nodes, and how to read it there")
    cli.add_argument("file", type=Path, metavar="FILE")
    cli.add_argument(
        "--nodes", type=at_least(1), default=1, metavar="N", help="number of nodes (default: 1)"
    )
    cli.add_argument(
        "--memory",
        type=size_bytes,
        metavar="SIZE",
        help="free memory of a node (default: this node's)",
    )
    cli.add_argument(
        "--disk",
        type=size_bytes,
        default=0,
        metavar="SIZE",
        help="free space on a node's local disk (default: 0)",
    )
    return top


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    options = parser().parse_args(arguments)
    path: Path = options.output if options.command == "pack" else options.file
    if options.command == "pack":
        samples = open_samples(options.source, decoded=options.decoded)
        if samples.left_out:
            print(f"{PROGRAM}: left out: {samples.left_out}", file=sys.stderr)
        with progress("packing", len(samples)) as advance:
            pack(samples, path, advance)
    with PackedFile(path) as file:
        if options.command == "verify":
            with progress("verifying", len(file)) as advance:
                verify(file, advance)
        elif options.command == "unpack":
            with progress("unpacking", len(file)) as advance:
                unpack(file, options.folder, advance)
        told = describe(file)
        if options.command == "plan":
            told = _planned(file, options)
    if options.json:
        print(json.dumps(told))
    elif options.command == "plan":
        _show_plan(told, options.nodes)
    else:
        _show(told, "whole: " if options.command == "verify" else "")
    return 0


def _planned(file: PackedFile, options: argparse.Namespace) -> dict[str, Any]:
    memory = free_bytes() if options.memory is None else options.memory
    set_bytes, file_bytes = int(file.lengths.sum()), file.tables.footer.file_bytes
    return asdict(reading_plan(set_bytes, file_bytes, options.nodes, memory, options.disk))


def _show_plan(told: dict[str, Any], nodes: int) -> None:
    sizes = {name: format_bytes(value) for name, value in told.items() if name.endswith("_bytes")}
    print(f"{told['use']}: {told['why']}")
    print(f"  all samples       {sizes['set_bytes']}")
    print(f"  in a store        {sizes['store_bytes']} on each of {counted(nodes, 'node')}")
    print(f"  sent an epoch     {sizes['sent_bytes']} by each node, with a store")
    print(f"  read an epoch     {sizes['read_bytes']} from the file, after the first")
    print(f"  a staged copy     {sizes['disk_bytes']} on each node's disk")


def describe(file: PackedFile) -> dict[str, Any]:
    """The contents of a file, in plain values."""
    lengths = file.tables.places[:, 1]
    return {
        "file": str(file.path),
        "file_bytes": file.tables.footer.file_bytes,
        "samples": len(file),
        "record_bytes": {
            "least": int(lengths.min()),
            "mean": float(lengths.mean()),
            "most": int(lengths.max()),
        },
        "fields": [
            {"name": f.name, "kind": f.kind}
            | ({"dtype": f.dtype, "shape": f.shape} if f.kind == "array" else {})
            for f in file.header.fields
        ],
        "classes": list(file.header.classes),
        "fingerprint": file.fingerprint,
    }


def _show(told: dict[str, Any], before: str) -> None:
    sizes = [format_bytes(told["record_bytes"][name]) for name in ("least", "mean", "most")]
    print(f"{before}{told['file']}: {told['samples']} samples, {format_bytes(told['file_bytes'])}")
    print(f"  a sample has {sizes[0]} to {sizes[2]}, {sizes[1]} on average")
    for field in told["fields"]:
        of = f" of {field['dtype']} {field['shape']}" if "shape" in field else ""
        print(f"  {printable(field['name'])}: {field['kind']}{of}")
    if classes := [printable(name) for name in told["classes"]]:
        print(f"  {counted(len(classes), 'class', 'classes')}, {classes[0]} to {classes[-1]}")
    print(f"  fingerprint {told['fingerprint']}")


if __name__ == "__main__":
    exit_on_sigterm()  # a partly written file is removed
    run(main, PROGRAM)
