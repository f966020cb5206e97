"""Takes the fingerprints of one optimizer's steps, writes them to a file, and compares ranks."""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hvd_ext import variables
from hvd_ext.audit import UNKNOWN, Header, Record, Writer
from hvd_ext.errors import MismatchError
from hvd_ext.torch.audit import fingerprints
from hvd_ext.torch.audit.inputs import Inputs
from hvd_ext.torch.audit.replicas import find_difference
from hvd_ext.torch.sharded.gradient import ShardedGradient
from hvd_ext.variables import VARIABLES
from hvd_ext.version import VERSION

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.torch.parameters import NamedParameters
    from hvd_ext.torch.reduction.placed import Observer
    from hvd_ext.torch.reduction.protocol import Reduces
    from hvd_ext.torch.reduction.slot import GradientSlot

# The number of audited optimizers of this process, by folder.
_numbers: defaultdict[Path, itertools.count[int]] = defaultdict(itertools.count)

log = logging.getLogger("hvd_ext")


class Auditor:
    """Audits one optimizer, every few steps.

    Hooks on modules and on the exchange exist only in audited steps; other steps are only counted.
    """

    def __init__(self, pairs: NamedParameters, rank: int, size: int) -> None:
        """Begin, with the settings of HVD_EXT_AUDIT and HVD_EXT_AUDIT_EVERY.

        Raises:
            UsageError: they are wrong, the folder holds an audit, or xxhash is not installed.
        """
        fingerprints.check_installed()
        self._pairs = list(pairs)
        self._rank, self._size = rank, size
        self._index = {id(parameter): i for i, (_, parameter) in enumerate(self._pairs)}
        self._first_replica = rank
        self._replicas: tuple[MPI.Comm, Sequence[str]] | None = None
        self._every, self._only_warns = variables.AUDIT_EVERY.read()
        self._step = 0
        self._is_due = False  # the next step is audited
        self._observe: Callable[[], Callable[[Observer | None], None] | None] = lambda: None
        self._gradients = [UNKNOWN] * len(self._pairs)
        self._sums = list(self._gradients)
        self._inputs: Inputs | None = None
        self._writer: Writer | None = None
        folder = variables.AUDIT.read()
        if folder is None:
            self._prepare()
            return
        self._inputs = Inputs()
        weakref.finalize(self, self._inputs.close).atexit = False
        self._number = next(_numbers[folder])
        self._writer = Writer(folder, self._number, rank)
        weakref.finalize(self, self._writer.close).atexit = False
        # The names of parameters in the order of their first gradients, until the first update.
        self._order: dict[str, None] = {}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_note, self._order, name))
            for name, parameter in self._pairs
            if parameter.requires_grad
        ]
        self._prepare()

    def watch(self, reducer: Reduces) -> None:
        """Note the gradients that a reducer exchanges, in audited steps."""
        # Weak, because a reducer refers to its observer, and must end with its optimizer.
        self._observe = weakref.WeakMethod(reducer.observe)
        if self._is_due and self._writer is not None:
            reducer.observe(self.note_gradients)

    def compare_replicas(self, comm: MPI.Comm, hosts: Sequence[str], first: int) -> None:
        """Compare the parameters of these ranks at each audit, if that is requested.

        Args:
            comm: the ranks that hold the same parameters after every step.
            hosts: their host names.
            first: the world rank of the first of these ranks.
        """
        self._first_replica = first
        if variables.AUDIT_EVERY.is_set:
            self._replicas = (comm, hosts)

    def note_gradients(self, slots: Sequence[GradientSlot]) -> None:
        """Note the gradients of a bucket, which is exchanged next."""
        for slot in slots:
            index = self._index.get(id(slot.parameter))
            if index is not None:
                length = slot.parameter.numel() * slot.view.element_size()
                self._gradients[index] = fingerprints.of_memory(slot.address, length)

    def before_update(self, exchanged: bool) -> None:
        """Note the sums, which are in `.grad`; without an exchange they equal the gradients."""
        if self._writer is None:
            return
        if self._step == 0:
            self._begin(self._writer)
        if not self._is_due:
            return
        self._sums = [_of_gradient(parameter.grad) for _, parameter in self._pairs]
        if not exchanged:
            self._gradients = self._sums

    def after_update(self) -> None:
        """Note the parameters, and end the step; collective if ranks are compared.

        Raises:
            MismatchError: ranks hold other parameters.
            StallError: ranks did not reach this in time; names them.
        """
        self._step += 1
        was_due = self._is_due
        parameters = self._parameters() if was_due else []
        if was_due and self._writer is not None and self._inputs is not None:
            inputs = self._inputs.take()
            self._writer.add(Record(self._step, inputs, self._gradients, self._sums, parameters))
            self._gradients = [UNKNOWN] * len(self._pairs)
        self._prepare()
        if was_due and self._replicas is not None:
            self._check_replicas(*self._replicas, parameters)

    def _begin(self, writer: Writer) -> None:
        """Note the parameters before the first update.

        Not when the optimizer is made: scripts make it first, and then set the number of threads,
        and broadcast or load the parameters.
        """
        for hook in self._hooks:
            hook.remove()
        header = Header(
            self._rank,
            self._size,
            self._number,
            tuple(name for name, _ in self._pairs),
            self._every,
            environment(),
            tuple(self._order),
            self._first_replica,
        )
        writer.begin(header)
        unknown = [UNKNOWN] * len(self._pairs)
        writer.add(Record(0, UNKNOWN, unknown, unknown, self._parameters()))

    def _prepare(self) -> None:
        """Watch the next step, if it is audited."""
        is_due = (self._step + 1) % self._every == 0
        if is_due == self._is_due:
            return
        self._is_due = is_due
        if self._inputs is None:
            return
        self._inputs.listen(is_due)
        if observe := self._observe():
            observe(self.note_gradients if is_due else None)

    def _parameters(self) -> list[int]:
        return [fingerprints.of_tensor(parameter) for _, parameter in self._pairs]

    def _check_replicas(
        self, comm: MPI.Comm, hosts: Sequence[str], parameters: Sequence[int]
    ) -> None:
        names = [name for name, _ in self._pairs]
        timeout_s = variables.STALL_TIMEOUT_S.read()
        difference = find_difference(comm, hosts, names, parameters, timeout_s)
        if difference is None:
            return
        since = f"after step {self._step}"
        if self._every > 1:
            since += f" (not yet after step {self._step - self._every})"
        if not self._only_warns:
            raise MismatchError(
                f"{since}, {difference}: resume from an earlier checkpoint; to see where it "
                "begins, run again with hvprof record --audit"
            )
        if comm.rank == 0:
            log.warning("hvd_ext: %s, %s", since, difference)


def _note(order: dict[str, None], name: str, _: torch.Tensor) -> None:
    order.setdefault(name)


def _of_gradient(gradient: torch.Tensor | None) -> int:
    if isinstance(gradient, ShardedGradient):
        return UNKNOWN
    return fingerprints.of_tensor(gradient)


def environment() -> dict[str, str]:
    """Versions and settings that may change the bits of a training."""
    found = {
        "torch": torch.__version__,
        "hvd_ext": VERSION,
        "threads": str(torch.get_num_threads()),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }
    for variable in VARIABLES:
        name = variable.name
        if name in os.environ and "AUDIT" not in name and not name.startswith("HVPROF"):
            found[name] = os.environ[name]
    return found
