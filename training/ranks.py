"""The start of the ranks, and errors that end all of them.

An error on only one rank (a file missing on its node) would leave the others waiting in the next
exchange. So checks run inside `collective_errors`: every rank learns of every failure, rank 0
prints one line, and all end with the same code.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from hvd_ext.arithmetic.summation_tree import slots_of_each_rank
from hvd_ext.errors import HvdExtError, MismatchError, UsageError
from hvd_ext.system.process import allow_singleton_mpi
from training.arguments import EXCHANGES, Parser

Read = TypeVar("Read")

_NO_MEMORY = "can't allocate memory"


def autocast(args: argparse.Namespace, device: torch.device) -> torch.autocast:
    """The precision of the forward pass; weights and gradients stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=args.bf16)


def exchange_options(args: argparse.Namespace, hvd: ModuleType) -> dict[str, Any]:
    """Arguments of DistributedOptimizer from the command line: `compression`, and `sync`.

    Raises:
        UsageError: the exchange has no such compression, or no `sync`.
    """
    options: dict[str, Any] = {"compression": hvd.Compression.none}
    if args.compression is not None:
        name = args.compression.partition(":")[0]
        if not hasattr(hvd.Compression, name):
            known = ", ".join(name for name in vars(hvd.Compression) if not name.startswith("_"))
            raise UsageError(
                f"--compression {args.compression}: --exchange {args.exchange} has only {known}"
            )
        own = hasattr(hvd, "LocalSGD")  # hvd_ext takes text
        options["compression"] = args.compression if own else getattr(hvd.Compression, name)
    if args.sync is not None:
        if not hasattr(hvd, "LocalSGD"):
            raise UsageError(f"--sync {args.sync}: --exchange {args.exchange} exchanges every step")
        options["sync"] = args.sync
    if args.reproducible is not None:
        options["reproducible"] = args.reproducible
    return options


def replica(args: argparse.Namespace, hvd: ModuleType, model: nn.Module, passes: int) -> nn.Module:
    """The module to call in training: the model, or the model in DDP. A collective.

    Args:
        args: its `exchange`, `compression` and `fp16_allreduce` are read.
        hvd: the exchange.
        model: model on its device, with rank 0's state.
        passes: backward passes in each step.

    Raises:
        UsageError: DDP cannot train this model in this way.
    """
    if not hasattr(hvd, "replicate"):
        return model
    halves = getattr(args, "fp16_allreduce", False)
    replicated: nn.Module = hvd.replicate(model, "fp16" if halves else args.compression, passes)
    return replicated


def passes(args: argparse.Namespace, hvd: ModuleType) -> int:
    """Return each rank's backward passes in a step: batches, or slots with --reproducible.

    Raises:
        UsageError: the ranks cannot share this many slots, or another flag excludes it.
    """
    batches: int = getattr(args, "batches_per_allreduce", 1)
    if getattr(args, "reproducible", None) is None:
        return batches
    asked = f"--reproducible {args.reproducible}"
    if args.exchange != "hvd_ext":
        raise UsageError(
            f"{asked}: --exchange {args.exchange} adds in another order on other ranks: take "
            "--exchange hvd_ext, or leave it out"
        )
    if batches > 1:
        raise UsageError(
            f"{asked} with --batches-per-allreduce {batches}: each rank takes its part of the "
            "slots: leave one of them out"
        )
    if prod(getattr(args, "grid", ())) * getattr(args, "channels", 1) > 1:
        raise UsageError(
            f"{asked} with --grid or --channels: ranks that share a sample add its parts: leave "
            "one of them out"
        )
    return slots_of_each_rank(args.reproducible, hvd.size())


def slots(args: argparse.Namespace, hvd: ModuleType, model: torch.nn.Module) -> Any:
    """Return the hvd_ext.torch.Slots of a model with --reproducible, or None.

    There is one thread unless --threads sets more, because their number changes sums.
    """
    if args.reproducible is None:
        return None
    return hvd.Slots(model, args.reproducible, seed=args.seed, threads=args.threads or 1)


def memory_format(args: argparse.Namespace) -> torch.memory_format:
    """Return the memory format of images, which convolutions keep.

    Weights stay unchanged, because Horovod broadcasts only contiguous ones.
    """
    return torch.channels_last if args.channels_last else torch.preserve_format


def start(
    parser: Parser, arguments: Sequence[str], exchange: str = ""
) -> tuple[argparse.Namespace, ModuleType]:
    """Parse the command line, start the exchange it names, and set torch's threads.

    Args:
        parser: has the flags of `add_exchange_arguments`, or those of `add_device_arguments`.
        arguments: the command line.
        exchange: the exchange, unless a flag names one.

    Returns:
        The parsed arguments, and the module to call `hvd`. A process that no
        launcher started is a world of one rank.

    Raises:
        SystemExit: the command line is wrong (rank 0 has said so), or `--help`.
    """
    try:
        args = parser.parse_args(arguments)
        hvd = _module(exchange or args.exchange)
    except UsageError as error:
        # Only an initialized Horovod knows which rank prints.
        with collective_errors(_initialised(_module(exchange or "hvd_ext")), parser.program):
            raise error
        raise AssertionError("unreachable") from error
    _initialised(hvd)
    if args.threads:
        torch.set_num_threads(args.threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(_threads(hvd))
    return args, hvd


def device(args: argparse.Namespace, hvd: ModuleType) -> torch.device:
    """Return the device of this rank: its own GPU, made torch's current one, or the CPU.

    Raises:
        UsageError: as `torch_device`.
    """
    return torch_device(args, hvd.local_rank())


def torch_device(args: argparse.Namespace, number: int = 0) -> torch.device:
    """Make the GPU of that number (modulo their count) torch's current one; or return the CPU.

    Raises:
        UsageError: a GPU is asked for, and torch finds none.
    """
    found = args.device != "cpu" and torch.cuda.is_available()
    if args.device == "cuda" and not found:
        raise UsageError(
            f"--device cuda: torch {torch.__version__} finds no GPU: give --device cpu, or "
            "fix the problems that `hvd-launch doctor` lists"
        )
    if not found:
        return torch.device("cpu")
    # hvd-launch may have renumbered the ranks' own GPUs, so the resulting device is read back.
    torch.cuda.set_device(number % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def collective_errors(hvd: ModuleType, program: str) -> Iterator[None]:
    """Run a block in which some ranks may raise HvdExtErrors, and fail on all or none.

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
    # Without a name Horovod would use the type's name, and wait forever if the types differ.
    answer = (mine.exit_code, str(mine)) if mine else None
    answers = hvd.allgather_object(answer, name="errors")
    failures = {rank: answer for rank, answer in enumerate(answers) if answer}
    if not failures:
        return
    first, (code, message) = min(failures.items())
    if hvd.rank() == 0:
        where = "" if first == 0 else f"rank {first}: "
        print(f"{program}: error: {where}{message}", file=sys.stderr, flush=True)
    # A launcher ends the job when the first rank leaves; by then rank 0 has printed the error.
    hvd.barrier()
    raise SystemExit(code)


@contextmanager
def abort_on_error(hvd: ModuleType, program: str) -> Iterator[None]:
    """End the whole job on an HvdExtError that only this rank may raise, between exchanges."""
    try:
        yield
    except HvdExtError as error:
        if hvd.size() == 1:
            raise
        print(f"{program}: error: rank {hvd.rank()}: {error}", file=sys.stderr, flush=True)
        # No shutdown, which would make the other ranks print long errors about this one's end
        # before the launcher ends them.
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
        # torch has a separate error class only for GPUs.
        if not (isinstance(error, (MemoryError, torch.OutOfMemoryError)) or _NO_MEMORY in said):
            raise
        said = said.rpartition("DefaultCPUAllocator: ")[2]
        raise HvdExtError(f"does not fit in memory: {said}; {advice}") from error


def read_on_rank_0(hvd: ModuleType, program: str, read: Callable[[], Read]) -> Read:
    """The result of rank 0's reading, for all ranks. A collective.

    Raises:
        SystemExit: on every rank, if it cannot be read; rank 0 has said why.
    """
    with collective_errors(hvd, program):
        value = read() if hvd.rank() == 0 else None
    received: Read = hvd.broadcast_object(value, root_rank=0, name="read")
    return received


def require_equal(hvd: ModuleType, program: str, value: object, what: str) -> None:
    """Check that `value` is the same on every rank. A collective.

    Args:
        hvd: the exchange.
        program: the name that the error begins with.
        value: anything with a complete `repr`.
        what: its name in the error, in the plural.

    Raises:
        SystemExit: on every rank, if it differs; rank 0 has said where.
    """
    digest = hashlib.sha256(repr(value).encode()).hexdigest()
    with collective_errors(hvd, program):
        if hvd.broadcast_object(digest, root_rank=0) != digest:
            raise MismatchError(f"{what} differ from those of rank 0: make them the same")


def _threads(hvd: ModuleType) -> int:
    """This rank's part of the cores that the ranks of its node may use; collective.

    Each rank may have separate cores, or all ranks the same cores.
    """
    mine = (hvd.cross_rank(), os.sched_getaffinity(0))
    everyones = hvd.allgather_object(mine, name="cores")
    cores = set().union(*(cores for node, cores in everyones if node == mine[0]))
    return max(1, len(cores) // int(hvd.local_size()))


def _module(exchange: str) -> ModuleType:
    """The module of an exchange.

    Raises:
        UsageError: it needs Horovod, which is not installed.
    """
    allow_singleton_mpi()
    try:
        return importlib.import_module(EXCHANGES[exchange])
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "horovod":
            raise
        raise UsageError(
            f"--exchange {exchange}: Horovod is not installed for {sys.executable}: install it "
            "(docs/start/install.md), or use --exchange hvd_ext"
        ) from missing


def _initialised(hvd: ModuleType) -> ModuleType:
    hvd.init()
    return hvd
