"""The networks that benchmarks.spatial_scaling trains, and the ways to train them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CASES = ("mesh", "cosmoflow", "cosmoflow_filters", "convolutions")
# In what two cases differ. Filters are shared where each rank would compute the whole:
# in layers of 2 x 2 x 2 cells, and of none.
SPLITS: dict[str, dict[str, Any]] = {
    "cosmoflow_filters": {
        "gather_before": ["features.12"],
        "split_filters": ["features.12", "features.14", "features.16", "head"],
    }
}


class Case:
    """A case on this rank: network, loss, and a step for each way to train it."""

    def __init__(self, name: str, comm: Any) -> None:
        import torch
        from torch import nn

        from cosmoflow.model import CosmoFlow
        from mesh.model import Architecture, MeshModel

        torch.set_num_threads(1)
        self.comm, self.splits = comm, SPLITS.get(name, {})
        # The published 1K mesh model, with a quarter of its channels.
        mesh = Architecture(
            ((32, 64, 64, 64, 64), *((width,) * 5 for width in (96, 128, 96, 96, 32))),
            (2, 2, 2, 2, 2, 1),
        )
        self.make: Callable[[], Any]
        self.small: Callable[[], Any]
        cosmoflow = (lambda: CosmoFlow(64), (1, 4, 64, 64, 64), (1, 4), "depth")
        self.make, self.shape, self.target_shape, self.axis = {
            "mesh": (lambda: MeshModel(mesh), (1, 18, 1024, 1024), (1, 1, 1024, 1024), "height"),
            "cosmoflow": cosmoflow,
            "cosmoflow_filters": cosmoflow,
            "convolutions": (
                lambda: nn.Sequential(
                    nn.Conv2d(16, 32, 3, padding=1),
                    *(nn.Conv2d(32, 32, 3, padding=1) for _ in range(6)),
                ),
                (1, 16, 512, 512),
                (1, 32, 512, 512),
                "width",
            ),
        }[name]
        # Something that runs the same kernels on little memory.
        small_cosmoflow = (lambda: CosmoFlow(32, thin=8), (2, 4, 32, 32, 32))
        self.small, self.small_shape = {
            "mesh": (self.make, (2, 18, 64, 64)),
            "cosmoflow": small_cosmoflow,
            "cosmoflow_filters": small_cosmoflow,
            "convolutions": (self.make, (2, 16, 32, 32)),
        }[name]

    def grid(self) -> Any:
        """All ranks along the case's axis."""
        from hvd_ext import spatial

        counts: dict[str, Any] = {self.axis: self.comm.size}
        return spatial.ProcessGrid(**counts, comm=self.comm)

    def model(self) -> Any:
        """The network, the same on every rank; dropout would make losses incomparable."""
        import torch

        torch.manual_seed(1)
        model = self.make()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return model

    def sample(self) -> tuple[Any, Any]:
        """Input and target, whole."""
        import torch

        generator = torch.Generator().manual_seed(2)
        x, y = (torch.rand(s, generator=generator) for s in (self.shape, self.target_shape))
        return x, y

    def _blocks(self, grid: Any) -> tuple[Any, Any]:
        """This rank's parts of input and target."""
        from hvd_ext import spatial

        x, y = self.sample()
        return spatial.scatter(x, grid), spatial.scatter(y, grid) if y.dim() > 2 else y

    def alone(self) -> Callable[[], float]:
        """A training step on the whole sample."""
        import torch

        model, (x, y) = self.model(), self.sample()
        return training_step(model, torch.optim.SGD(model.parameters(), lr=1e-3), x, y)

    def converted(self, alone: Any) -> Callable[[], float]:
        """The same with the layers of split models, on a communicator of this rank alone."""
        import torch

        from hvd_ext import spatial

        grid = spatial.ProcessGrid(comm=alone)
        model = spatial.convert(self.model(), grid)
        return training_step(
            model, torch.optim.SGD(model.parameters(), lr=1e-3), *self._blocks(grid)
        )

    def split(self, *, overlap: bool) -> Callable[[], float]:
        """A training step on this rank's block."""
        import torch

        import hvd_ext.torch as hvd
        from hvd_ext import spatial

        grid = self.grid()
        grid.overlap = overlap
        model = spatial.convert(self.model(), grid, **self.splits)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1e-3),
            named_parameters=model.named_parameters(),
        )
        return training_step(model, optimizer, *self._blocks(grid))

    def dtensor(self) -> Callable[[], float]:
        """A training step with torch's own tensors that are split along the width."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import (
            DTensor,
            Replicate,
            Shard,
            distribute_module,
            distribute_tensor,
        )

        mesh = init_device_mesh("cpu", (self.comm.size,))
        model = distribute_module(self.model(), mesh)
        x, y = (distribute_tensor(t, mesh, [Shard(t.dim() - 1)]) for t in self.sample())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)

        def step() -> float:
            optimizer.zero_grad()
            loss: Any = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            for parameter in model.parameters():
                if isinstance(parameter.grad, DTensor):
                    parameter.grad = parameter.grad.redistribute(placements=[Replicate()])
            optimizer.step()
            return float(loss.full_tensor().detach())

        return step


def training_step(model: Any, optimizer: Any, x: Any, y: Any) -> Callable[[], float]:
    """A step of a model and its optimizer on a sample; calling it returns the loss."""
    import torch

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step
