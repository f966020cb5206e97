"""hvprof layers: a model timed layer by layer."""

from __future__ import annotations

import argparse

from hvd_ext.cli import at_least
from hvd_ext.errors import UsageError
from hvprof.commands.shared import after_dashes, console, print_json
from hvprof.layers.timing import parse_shape, time_layers
from hvprof.reporters.terminal.layers import render

HELP = "time a model layer by layer"
ABOUT = (
    "Time the forward and backward pass of each layer at several batch sizes, and measure when "
    "each "
    "gradient is ready. MODEL is module:callable, its arguments name=value."
)
EXAMPLE = "layers --input 3,224,224 --batch 1,4,16 -- resnet.model:resnet50 classes=10"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", required=True, metavar="SHAPE", help="shape of one sample, as in 3,224,224"
    )
    parser.add_argument(
        "--batch", default="1,4,16", metavar="N,...", help="batch sizes (default: 1,4,16)"
    )
    parser.add_argument(
        "--repeats",
        type=at_least(1),
        default=5,
        metavar="N",
        help="timed passes for each batch size (default: 5)",
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- MODEL [NAME=VALUE ...]")


def run(options: argparse.Namespace) -> int:
    model, *settings = after_dashes(options.command) or [""]
    if not model:
        raise UsageError("no model: give module:callable after --, such as resnet.model:resnet50")
    shape, batches = parse_shape(options.input), parse_shape(options.batch)
    table = time_layers(model, settings, shape, batches, options.repeats)
    if options.json:
        print_json(table.as_json())
    else:
        render(table, console())
    return 0
