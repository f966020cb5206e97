"""Start the ranks, and what one rank cannot do, no rank does.

An error that one rank meets alone (a file missing on its node) would leave the
others waiting in the next exchange. So checks run inside `together`: every rank
hears of every failure, rank 0 prints one line, and all leave with the same code.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import NoReturn

import torch

from hvd_ext.errors import HvdExtError, MismatchError, UsageError

_NO_MEMORY = "can't allocate memory"
EXCHANGES = ("hvd_ext", "horovod")
DEVICES = ("auto", "cpu", "cuda")


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

    def error(self, message: str) -> NoReturn:
        """Raise the complaint."""
        raise UsageError(f"{message} (see {self.prog} --help)")


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows the defaults that there are, and keeps the example on its own line."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


def add_exchange_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every trainer has: who exchanges, and on what it computes."""
    parser.add_argument(
        "--exchange", choices=EXCHANGES, default="hvd_ext", help="whose DistributedOptimizer"
    )
    parser.add_argument(
        "--threads",
        type=at_least(0, most=4096),
        default=0,
        metavar="N",
        help="torch threads per rank; 0: OMP_NUM_THREADS, or the node's cores over its ranks",
    )
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="auto: a GPU where there is one"
    )


def add_precision_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of trainers of images that `autocast` and `memory_format` read."""
    parser.add_argument(
        "--bf16", action="store_true", help="compute in bfloat16 where that is safe (autocast)"
    )
    parser.add_argument(
        "--channels-last", action="store_true", help="keep the channels of a pixel together"
    )


def autocast(args: argparse.Namespace, device: torch.device) -> torch.autocast:
    """The precision of the forward pass; weights and gradients stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=args.bf16)


def memory_format(args: argparse.Namespace) -> torch.memory_format:
    """How images lie in memory, and so what convolutions make of them.

    Weights stay as they are: Horovod broadcasts none but contiguous ones.
    """
    return torch.channels_last if args.channels_last else torch.preserve_format


def start(parser: Parser, arguments: Sequence[str]) -> tuple[argparse.Namespace, ModuleType]:
    """Parse the command line, start the exchange it names, and set torch's threads.

    Returns:
        The parsed arguments, and the module to call `hvd`. A process that no
        launcher started is a world of one rank.

    Raises:
        SystemExit: the command line is wrong (rank 0 has said so), or `--help`.
    """
    try:
        args = parser.parse_args(arguments)
    except UsageError as error:
        # Only an initialised Horovod knows which of the ranks is to speak.
        with together(_initialised("horovod"), parser.program):
            raise error
        raise AssertionError("unreachable") from error
    hvd = _initialised(args.exchange)
    if args.threads:
        torch.set_num_threads(args.threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(_threads(hvd))
    return args, hvd


def device(args: argparse.Namespace, hvd: ModuleType) -> torch.device:
    """What this rank computes on: its own GPU, made torch's current one, or the CPU.

    Raises:
        UsageError: a GPU is asked for, and torch finds none.
    """
    found = args.device != "cpu" and torch.cuda.is_available()
    if args.device == "cuda" and not found:
        raise UsageError(
            f"--device cuda: torch {torch.__version__} finds no GPU: give --device cpu, or "
            "mend what `hvd-launch doctor` shows"
        )
    if not found:
        return torch.device("cpu")
    # hvd-launch may have given the ranks' own GPUs other numbers: asked for is what came of it.
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def together(hvd: ModuleType, program: str) -> Iterator[None]:
    """Run a block in which HvdExtErrors may rise on some ranks, and fail on all or none.

    A collective: every rank must enter it.

    Raises:
        SystemExit: on every rank, with the exit code of the first failing rank,
            after rank 0 has printed its message.
    """
    mine: HvdExtError | None = None
    try:
        yield
    except HvdExtError as error:
        mine = error
    # Without a name Horovod would use the type's, and wait for ever where they differ.
    answer = (mine.exit_code, str(mine)) if mine else None
    answers = hvd.allgather_object(answer, name="errors")
    failures = {rank: answer for rank, answer in enumerate(answers) if answer}
    if not failures:
        return
    first, (code, message) = min(failures.items())
    if hvd.rank() == 0:
        where = "" if first == 0 else f"rank {first}: "
        print(f"{program}: error: {where}{message}", file=sys.stderr, flush=True)
    # A launcher ends the job when the first rank leaves; by then rank 0 has spoken.
    hvd.barrier()
    raise SystemExit(code)


@contextmanager
def alone(hvd: ModuleType, program: str) -> Iterator[None]:
    """End the whole job on an HvdExtError that this rank may meet alone, between exchanges."""
    try:
        yield
    except HvdExtError as error:
        if hvd.size() == 1:
            raise
        print(f"{program}: error: rank {hvd.rank()}: {error}", file=sys.stderr, flush=True)
        # No farewell: it would wake the other ranks to complain at length of this one's
        # leaving, before the launcher ends them.
        os._exit(error.exit_code)


@contextmanager
def enough_memory(advice: str) -> Iterator[None]:
    """Turn running out of memory, the host's or a GPU's, into an error of one line.

    Args:
        advice: what to do about it.

    Raises:
        HvdExtError: the block ran out of memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error).partition("\n")[0] or "Python found no memory"
        # torch has a class of its own for GPUs alone.
        if not (isinstance(error, (MemoryError, torch.OutOfMemoryError)) or _NO_MEMORY in said):
            raise
        said = said.rpartition("DefaultCPUAllocator: ")[2]
        raise HvdExtError(f"does not fit in memory: {said}; {advice}") from error


def agree(hvd: ModuleType, program: str, value: object, what: str) -> None:
    """See that `value` is the same on every rank. A collective.

    Args:
        hvd: the exchange.
        program: the name that the error begins with.
        value: anything with a `repr` that says all of it.
        what: how the error calls it, in the plural.

    Raises:
        SystemExit: on every rank, if it differs; rank 0 has said where.
    """
    digest = hashlib.sha256(repr(value).encode()).hexdigest()
    with together(hvd, program):
        if hvd.broadcast_object(digest, root_rank=0) != digest:
            raise MismatchError(f"{what} differ from those of rank 0: make them the same")


def at_least(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """An argparse type: a whole number that is not below `least`, nor above `most`."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {most}")
        return value

    return whole_number


def above_zero(text: str) -> float:
    """An argparse type: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def not_negative(text: str) -> float:
    """An argparse type: 0 or a finite number above it."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number >= 0")
    return value


def _threads(hvd: ModuleType) -> int:
    """This rank's part of the cores that the ranks of its node may use; collective.

    Each rank may have been given cores of its own, or all of them the same ones.
    """
    mine = (hvd.cross_rank(), os.sched_getaffinity(0))
    everyones = hvd.allgather_object(mine, name="cores")
    cores = set().union(*(cores for node, cores in everyones if node == mine[0]))
    return max(1, len(cores) // int(hvd.local_size()))


def _initialised(exchange: str) -> ModuleType:
    # Open MPI would start its daemon for a process that has no launcher, and fail
    # where that is not on its built-in path. Other MPIs do not know the variable.
    os.environ.setdefault("OMPI_MCA_ess_singleton_isolated", "1")
    hvd = importlib.import_module(f"{exchange}.torch")
    hvd.init()
    return hvd
