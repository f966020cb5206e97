"""The ranks on which faults and healthy patterns act, by what they wait in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Meets(Protocol):
    """A rank of the job on which the faults and the healthy patterns act."""

    rank: int
    size: int

    def meet(self) -> None:
        """Wait for all ranks, in the collective of the job."""

    def agree(self, value: bool) -> bool:
        """The value of rank 0."""


class Rank(Meets, Protocol):
    """One that also sends messages, and calls whatever collective it likes."""

    def call_another_operation(self) -> None:
        """Call a collective that the others do not call."""

    def meet_in_another_group(self, calls: bool) -> None:
        """Make a communicator of all ranks, and wait in it if this rank `calls`."""

    def send(self, to: int) -> None:
        """Send some bytes, and wait until they are taken."""

    def receive(self, source: int) -> None:
        """Wait for some bytes."""

    def begin_barrier(self) -> Callable[[], bool]:
        """Begin to wait for all ranks; the result says whether they have come."""


class OfMPI:
    """A rank that calls MPI: in "allreduce", "barrier" or, without blocking, "wait".

    On "hosts", where ranks take steps, and after other "calls", it is "allreduce".
    """

    def __init__(self, where: str) -> None:
        if where == "calls":
            import torch.utils.data  # noqa: F401  a fault's: MPI has not started while it loads

        import numpy as np
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._numpy: Any = np
        self._world: Any = MPI.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size
        self._values: Any = np.ones(1000)
        self._meet: Callable[[], Any] = {
            "allreduce": lambda: self._world.Allreduce(MPI.IN_PLACE, self._values),
            "barrier": self._world.Barrier,
            "wait": lambda: self._world.Iallreduce(MPI.IN_PLACE, self._values).Wait(),
            "calls": lambda: self._world.Allreduce(MPI.IN_PLACE, self._values),
            "hosts": lambda: self._world.Allreduce(MPI.IN_PLACE, self._values),
            "steps": lambda: self._world.Allreduce(MPI.IN_PLACE, self._values),
            "steps_on_hosts": lambda: self._world.Allreduce(MPI.IN_PLACE, self._values),
        }[where]

    def meet(self) -> None:
        self._meet()

    def agree(self, value: bool) -> bool:
        return bool(self._world.bcast(value))

    def grow(self, count_bytes: int) -> None:
        """Have `meet` exchange so much."""
        self._values = self._numpy.ones(count_bytes // 8)

    def call_another_operation(self) -> None:
        self._world.Bcast(self._values, root=0)

    def meet_in_another_group(self, calls: bool) -> None:
        other = self._world.Dup()
        if calls:
            other.Allreduce(self._mpi.IN_PLACE, self._values)

    def send(self, to: int) -> None:
        self._world.Send(self._values, to)

    def receive(self, source: int) -> None:
        self._world.Recv(self._values, source)

    def begin_barrier(self) -> Callable[[], bool]:
        test: Callable[[], bool] = self._world.Ibarrier().Test
        return test


class OfTorch:
    """A rank that calls torch.distributed on Gloo, without MPI."""

    def __init__(self) -> None:
        import torch
        import torch.distributed

        self._torch: Any = torch.distributed
        self._torch.init_process_group("gloo")
        self.rank, self.size = self._torch.get_rank(), self._torch.get_world_size()
        self._values: Any = torch.ones(1000)

    def meet(self) -> None:
        self._torch.all_reduce(self._values)

    def agree(self, value: bool) -> bool:
        values = self._values.new_tensor([value])
        self._torch.broadcast(values, 0)
        return bool(values[0])

    def call_another_operation(self) -> None:
        self._torch.broadcast(self._values, 0)

    def meet_in_another_group(self, calls: bool) -> None:
        other = self._torch.new_group(list(range(self.size)))
        if calls:
            self._torch.all_reduce(self._values, group=other)

    def send(self, to: int) -> None:
        self._torch.send(self._values, to)

    def receive(self, source: int) -> None:
        self._torch.recv(self._values, source)

    def begin_barrier(self) -> Callable[[], bool]:
        test: Callable[[], bool] = self._torch.barrier(async_op=True).is_completed
        return test


class _OfTensors:
    """A rank of Horovod's or hvd_ext's, which matches its collectives by their names."""

    def __init__(self, hvd: Any) -> None:
        import torch

        torch.set_num_threads(1)
        hvd.init()
        self._hvd, self._torch = hvd, torch
        self.rank, self.size = hvd.rank(), hvd.size()

    def agree(self, value: bool) -> bool:
        return bool(self._hvd.broadcast(self._torch.tensor([int(value)]), 0, name="agreed")[0])

    def meet(self) -> None:
        self.submit("weights")()

    def submit(self, name: str) -> Callable[[], Any]:
        """Submit a tensor; the result waits for the sum."""
        handle = self._hvd.allreduce_async(self._torch.ones(1000), name=name)
        return lambda: self._hvd.synchronize(handle)


class OfHorovod(_OfTensors):
    """A rank that sums tensors by Horovod."""

    def __init__(self) -> None:
        import horovod.torch

        super().__init__(horovod.torch)


class OfHvdExt(_OfTensors):
    """A rank that trains with hvd_ext's optimizer, a step wherever it meets the others."""

    _LAYERS = 4

    def __init__(self) -> None:
        import hvd_ext.torch

        super().__init__(hvd_ext.torch)
        torch = self._torch
        torch.manual_seed(1)
        self._model = torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(self._LAYERS)))
        self._optimizer = self._hvd.DistributedOptimizer(
            torch.optim.SGD(self._model.parameters(), lr=1e-6),
            named_parameters=self._model.named_parameters(),
        )

    def meet(self) -> None:
        self.step()

    def backward(self, leave_out: int = 0) -> None:
        """Compute gradients, but for those of the first layers."""
        x = self._torch.ones(4, 200)
        for layer in self._model[leave_out:]:
            x = layer(x)
        x.sum().backward()

    def step(self, leave_out: int = 0) -> None:
        """Train a step that leaves parameters of the first layers unused."""
        self.backward(leave_out)
        self._optimizer.step()
        self._optimizer.zero_grad()


def rank_of(where: str) -> Any:
    """This rank of a job that waits in the way of the name."""
    if where == "torch":
        return OfTorch()
    if where == "horovod":
        return OfHorovod()
    if where == "hvd_ext":
        return OfHvdExt()
    return OfMPI(where)
