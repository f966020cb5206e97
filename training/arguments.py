"""The command line that the trainers share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from hvd_ext.cli import add_version, at_least, size_bytes
from hvd_ext.compression.formats import AUTO, FORMATS
from hvd_ext.compression.formats import parse as parse_format
from hvd_ext.errors import UsageError
from hvd_ext.schedules import FORMS, parse

# The module that takes Horovod's place.
EXCHANGES = {
    "hvd_ext": "hvd_ext.torch",
    "horovod": "horovod.torch",
    "ddp": "training.exchanges.ddp",
    "ddp+hvd_ext": "training.exchanges.ddp_attached",
    "none": "training.exchanges.alone",
}
DEVICES = ("auto", "cpu", "cuda")
_UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are UsageErrors, one line each."""

    def __init__(self, program: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"python -m {program}",
            description=description,
            epilog=f"example:\n  {example}",
            formatter_class=_HelpFormatter,
        )
        self.program = program
        # Part of the parsed values, for `checkpoint.shaping_flags`; groups share it.
        self.set_defaults(may_change=set())
        add_version(self)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults if there are any, and keeps the example on a separate line."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # A flag's default, an empty list and a grid of 1 are not worth showing.
        if isinstance(action.default, bool | tuple | None) or action.default == argparse.SUPPRESS:
            return action.help
        return super()._get_help_string(action)


def may_change(parser: argparse._ActionsContainer, *flags: str) -> None:
    """Let a resumed run have other values of flags that do not shape training.

    Args:
        parser: a Parser, or a group of one.
        flags: such as "--log-every".
    """
    names = (flag.removeprefix("--").replace("-", "_") for flag in flags)
    parser.get_default("may_change").update(names)


def add_exchange_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every trainer has: the exchange and the device."""
    parser.add_argument(
        "--exchange",
        choices=EXCHANGES,
        default="hvd_ext",
        help="reduction of gradients: by an optimizer, by DDP on Gloo, or by DDP with hvd_ext "
        "attached; none trains every rank alone, without communication",
    )
    parser.add_argument(
        "--compression",
        type=_compression,
        metavar="FORMAT",
        help=f"compression of gradients between nodes: {', '.join(FORMATS)}, powersgd:rank=4, or "
        f"{AUTO}, which takes the fastest by measurement (default: HVD_EXT_COMPRESSION)",
    )
    parser.add_argument(
        "--sync",
        type=_sync,
        metavar="WHEN",
        help=f"how often nodes exchange: {FORMS} (default: HVD_EXT_SYNC)",
    )
    parser.add_argument(
        "--reproducible",
        type=at_least(1),
        metavar="S",
        help="slots of a step, a power of two, for the same results on any number of ranks; "
        "--batch-size is then that of a slot",
    )
    parser.add_argument(
        "--stop-after",
        type=duration_s,
        metavar="TIME",
        help="time after which to write a checkpoint and exit with code 99, as on SIGUSR1 and "
        "SIGTERM, such as 3h50m, 90m or 45s",
    )
    may_change(parser, "--exchange", "--stop-after")
    add_device_arguments(parser)


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a rank's device."""
    parser.add_argument(
        "--threads",
        type=at_least(0, most=4096),
        default=0,
        metavar="N",
        help="torch threads per rank; 0 uses OMP_NUM_THREADS, or the node's cores divided by "
        "its ranks",
    )
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="device; auto uses a GPU if there is one"
    )
    may_change(parser, "--threads", "--device")


def add_log_arguments(
    parser: argparse.ArgumentParser, checkpoint_every: int, validate_every: str
) -> None:
    """Add the flags that set when `training.by_steps` logs, validates and saves.

    Args:
        parser: the command line.
        checkpoint_every: steps, unless the flag says otherwise.
        validate_every: steps between validations, or "epoch".
    """
    positive = at_least(1)
    parser.add_argument("--log-every", type=positive, default=10, help="steps between log rows")
    parser.add_argument(
        "--checkpoint-every",
        type=positive,
        default=checkpoint_every,
        help="steps between checkpoints",
    )
    parser.add_argument(
        "--keep",
        type=at_least(0),
        default=0,
        metavar="N",
        help="number of checkpoints to keep as checkpoint-STEP.pt",
    )
    parser.add_argument(
        "--validate-every",
        type=_steps_or_epoch,
        default=validate_every,
        metavar="STEPS",
        help="steps between validations, or 'epoch'; the best checkpoint is kept as best.pt",
    )
    may_change(parser, "--log-every", "--checkpoint-every", "--keep", "--validate-every")
    add_tensorboard_argument(parser)


def add_tensorboard_argument(parser: argparse._ActionsContainer) -> None:
    """Add --tensorboard."""
    parser.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="folder for TensorBoard logs"
    )
    may_change(parser, "--tensorboard")


def add_loading_arguments(parser: argparse._ActionsContainer, workers: int) -> None:
    """Add the flags of trainers that read samples while they train.

    Args:
        parser: the command line.
        workers: threads, unless --workers says otherwise.
    """
    parser.add_argument(
        "--workers", type=at_least(1), default=workers, help="number of threads that load samples"
    )
    parser.add_argument(
        "--prefetch",
        type=at_least(0),
        default=2,
        help="batches to prefetch; 0 loads within the step",
    )
    parser.add_argument(
        "--stage-to",
        type=Path,
        metavar="DIR",
        help="folder on each node's local disk for a copy of the packed file, made and used "
        "while training runs",
    )
    parser.add_argument(
        "--share-staging",
        action="store_true",
        help="with --stage-to, read the packed file once for all nodes, which send each other "
        "the pieces; otherwise each node reads all of it",
    )
    may_change(parser, "--workers", "--prefetch", "--stage-to", "--share-staging")


def add_check_argument(parser: argparse._ActionsContainer) -> None:
    """Add --check-images."""
    parser.add_argument(
        "--check-images",
        action="store_true",
        help="before the first step decode all images that are read later; without it only their "
        "headers are read",
    )
    may_change(parser, "--check-images")


def add_store_argument(parser: argparse._ActionsContainer) -> None:
    """Add the flag of trainers whose samples a store can keep."""
    parser.add_argument(
        "--store",
        type=_store,
        metavar="memory|SIZE",
        help="cache samples in the nodes' memory and send them to the ranks that need them: as"
        " many as fit, or SIZE per node",
    )
    may_change(parser, "--store")


def _store(text: str) -> str | int:
    """The word memory, or bytes."""
    return text if text == "memory" else size_bytes(text)


def _steps_or_epoch(text: str) -> int:
    """Steps; 0 stands for an epoch."""
    return 0 if text == "epoch" else at_least(1)(text)


def _compression(text: str) -> str:
    """A format's name."""
    try:
        parse_format(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _sync(text: str) -> str:
    """A schedule, as text."""
    try:
        return str(parse(text))
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_precision_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of trainers of images that `autocast` and `memory_format` read."""
    parser.add_argument(
        "--bf16", action="store_true", help="compute in bfloat16 where that is safe (autocast)"
    )
    parser.add_argument(
        "--channels-last", action="store_true", help="use the channels-last memory format"
    )


def duration_s(text: str) -> float:
    """An argparse type: a time such as 3h50m, 90m or 45s, in seconds."""
    parts = re.findall(r"(\d+)([dhms])", text)
    if not parts or "".join(map("".join, parts)) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 3h50m, 90m or 45s")
    return float(sum(int(number) * _UNITS_S[unit] for number, unit in parts))


def grid_of(axes: int) -> Callable[[str], tuple[int, ...]]:
    """An argparse type: how many ranks share a sample along each axis, such as 2x1."""

    def grid(text: str) -> tuple[int, ...]:
        parts = text.lower().split("x")
        if len(parts) != axes or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise argparse.ArgumentTypeError(
                f"invalid grid {text!r}: give {axes} whole numbers, such as "
                + "x".join("2" + "1" * (axes - 1))
            )
        return tuple(map(int, parts))

    return grid
