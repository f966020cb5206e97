"""A rank that trains all runs of the faults one after another, each with its own audit."""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from mpi4py import MPI
from torch import Tensor, nn

import hvd_ext.torch as hvd
from hvd_ext.allreduce.table import Row, Table
from hvd_ext.job.topology import Topology
from hvd_ext.torch.job import lifecycle
from hvd_ext.torch.reduction import arena_factory
from tests.audit_faults.cases import ALL, STEPS, Run, Setup
from tests.audit_faults.faults import Here
from tests.audit_faults.nets import NETS
from tests.support.arena.pretended_nodes import pretend


def work(folder: Path, runs: Sequence[Run]) -> None:
    """Train each run, with its audit in a folder of its name; collective."""
    hvd.init()
    for run in runs:
        with _made(run.setup, folder / run.name):
            _Training(run).train(folder / f"{run.name}.{hvd.rank()}.json")
        gc.collect()
        MPI.COMM_WORLD.Barrier()
    hvd.shutdown()


class _Training:
    def __init__(self, run: Run) -> None:
        self.run, self.setup, self.net = run, run.setup, NETS[run.net]
        torch.manual_seed(1000 * self.setup.seed + hvd.rank())
        self.model = self.net.build()
        if self.setup.broadcast == "before":
            hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        arguments = dict(self.setup.arguments)
        if self.setup.slots:
            arguments["reproducible"] = self.setup.slots
        self.optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.Adam(parameters, self.net.rate), self.model.named_parameters(), **arguments
        )
        if self.setup.broadcast not in ("", "before"):
            state = self.model.state_dict()
            state.pop(self.setup.broadcast, None)
            hvd.broadcast_parameters(state, root_rank=0)
        if self.setup.extra == "state":
            hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        self.notes: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
        self.number = 0
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                parameter.register_hook(functools.partial(self._note, "gradient", name))
        self.slots: Any = None
        if self.setup.slots:
            self.slots = hvd.Slots(self.model, self.setup.slots, seed=self.setup.seed)
        torch.manual_seed(5000 + 100 * self.setup.seed + hvd.rank())

    def train(self, notes: Path) -> None:
        """Take all steps, with the fault in its own; write down what gradients and sums were."""
        for self.number in range(1, STEPS + 1):
            self.optimizer.zero_grad()
            x, target = self.net.batch(self.setup.data_seed, self.number, hvd.rank())
            here = Here(self.model, self.optimizer, x, self._damaged())
            with here.undo:
                self._inject("forward", here)
                self._backward(x, target)
                self._inject("update", here)
                self._step(here)
            if self.setup.extra == "validate":
                with torch.no_grad():
                    self.model.eval()(target.new_ones(x.shape))
                self.model.train()
        notes.write_text(json.dumps(self.notes))
        self.optimizer._reducer.close()

    def _damaged(self) -> nn.Parameter | None:
        return dict(self.model.named_parameters()).get(self.run.parameter or "")

    def _inject(self, point: str, here: Here) -> None:
        run = self.run
        if run.fault is None or run.fault.point != point or run.step != self.number:
            return
        if run.on == ALL or hvd.rank() in run.on:
            run.fault.act(here)

    def _backward(self, x: Tensor, target: Tensor) -> None:
        if self.setup.slots:
            self.slots.backward(self.number, self._loss_of_slot)
            return
        for _ in range(self.setup.passes):
            self.net.loss(self.model(x), target).backward()

    def _loss_of_slot(self, slot: int) -> Tensor:
        x, target = self.net.batch(self.setup.data_seed, self.number, slot)
        return self.net.loss(self.model(x), target)

    def _step(self, here: Here) -> None:
        at_sums = self.run.fault is not None and self.run.fault.point == "sum"
        if self.setup.extra == "clip":
            self.optimizer.clip_grad_norm_(0.5)
        if not at_sums and not self.setup.ranks > 2:
            self.optimizer.step()
            return
        self.optimizer.synchronize()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self._note("sum", name, parameter.grad)
        self._inject("sum", here)
        with self.optimizer.skip_synchronize():
            self.optimizer.step()

    def _note(self, kind: str, name: str, tensor: Tensor) -> None:
        content = tensor.detach().contiguous().numpy().tobytes()
        self.notes[kind].append((self.number, name, hashlib.sha256(content).hexdigest()))


@contextmanager
def _made(setup: Setup, audit: Path) -> Iterator[None]:
    """What a run finds: its variables, nodes, table and threads."""
    variables = {"HVD_EXT_AUDIT": str(audit)}
    if setup.every > 1:
        variables["HVD_EXT_AUDIT_EVERY"] = f"{setup.every}:warn"
    if setup.bucket_bytes:
        variables["HVD_EXT_BUCKET_BYTES"] = setup.bucket_bytes
    torch.set_num_threads(setup.threads)
    torch.use_deterministic_algorithms(False)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, variables))
        if setup.per_node:
            topology = _topology(setup.per_node)
            stack.enter_context(mock.patch.object(lifecycle, "topology", return_value=topology))
        if setup.algorithm:
            table = Table((Row(0, 0, "host", ((0, setup.algorithm),)),), "a fault")
            stack.enter_context(mock.patch.object(arena_factory, "read_table", return_value=table))
        yield


@functools.cache
def _topology(per_node: int) -> Topology:
    return pretend(MPI.COMM_WORLD, per_node)
