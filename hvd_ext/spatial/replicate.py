"""From replicated to partitioned and back."""

from __future__ import annotations

from torch import Tensor

from hvd_ext.spatial.grid import ProcessGrid
from hvd_ext.spatial.halo import cells, enter, leave
from hvd_ext.spatial.partition import shard
from hvd_ext.spatial.refusal import Refusal
from hvd_ext.spatial.tensor import SpatialTensor, implements
from hvd_ext.spatial.windowed import fetch


def scatter(tensor: Tensor, grid: ProcessGrid, spatial_dims: int | None = None) -> SpatialTensor:
    """Keep this rank's shard of a tensor that every rank of its space group has whole.

    Nothing is sent. The shard is a copy, so that the whole can be let go of.

    Args:
        tensor: (N, C, *extents), the same on all ranks of the space group.
        grid: how ranks are arranged.
        spatial_dims: how many dims, the last ones, are split; by default all but two.
            Labels (N, H, W) have 2.

    Raises:
        Refusal: the tensor has not as many dims, or the grid splits others.
    """
    dims = tensor.ndim - 2 if spatial_dims is None else spatial_dims
    if not 1 <= dims <= min(3, tensor.ndim):
        raise Refusal(
            f"scatter of a tensor of shape {tuple(tensor.shape)} over {dims} spatial dims: "
            "1 to 3 of its last dims can be split; name them: spatial_dims=2 for labels (N, H, W)"
        )
    extents = tuple(tensor.shape[tensor.ndim - dims :])
    box = shard(extents, grid.shape.parts(dims), grid.coordinates(dims))
    whole = tuple((0, extent) for extent in extents)
    local = enter(tensor, grid.space)[cells(box, whole)].clone()
    return SpatialTensor(local, grid, extents)


@implements("gather")
def gather(x: SpatialTensor) -> Tensor:
    """Put the whole together on every rank of the space group; it is replicated from then on.

    Gradients of parameters that are used on it are whole on every rank, as their mean is.
    """
    everything = [[[(0, extent)]] * parts for extent, parts in zip(x.extents, x.parts, strict=True)]
    return fetch(x.like(leave(x.local, x.grid.space)), everything)
