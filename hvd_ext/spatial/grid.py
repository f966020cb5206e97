"""Process grids: ranks that share one sample, and ranks that own its part of other samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hvd_ext.errors import UsageError
from hvd_ext.spatial.exchange.communicator import Communicator
from hvd_ext.spatial.exchange.device.communicator import DeviceCommunicator
from hvd_ext.spatial.geometry.partition import coordinates_of

if TYPE_CHECKING:
    from mpi4py import MPI

AXES = ("depth", "height", "width")


@dataclass(frozen=True, slots=True)
class GridShape:
    """Number of ranks along each spatial axis.

    Attributes:
        depth: ranks along the third dim from the end.
        height: ranks along the dim before the last.
        width: ranks along the last dim.
        channels: ranks that have the same block of space, and share the filters of layers.

    Examples:
        >>> GridShape(height=2, width=3).parts(2)
        (2, 3)
    """

    depth: int = 1
    height: int = 1
    width: int = 1
    channels: int = 1

    def __post_init__(self) -> None:
        for axis, count in zip((*AXES, "channels"), (*self.axes, self.channels), strict=True):
            if not isinstance(count, int) or count < 1:
                raise UsageError(f"{axis}={count!r}: use at least 1 rank along an axis")

    @property
    def axes(self) -> tuple[int, int, int]:
        """Return the ranks along depth, height and width."""
        return (self.depth, self.height, self.width)

    @property
    def size(self) -> int:
        """Return the number of ranks that share one sample."""
        return math.prod(self.axes) * self.channels

    @property
    def filters(self) -> int:
        """Return the ranks that share filters: those along `channels`, or all of a sample."""
        return self.channels if self.channels > 1 else self.size

    def parts(self, dims: int) -> tuple[int, ...]:
        """Return the ranks along the last `dims` dims of a tensor.

        Args:
            dims: number of spatial dims, 1 to 3.

        Raises:
            UsageError: the grid splits an axis that such a tensor does not have.
        """
        if dims < 1 or dims > len(AXES):
            raise UsageError(f"{dims} spatial dims: 1 to {len(AXES)} can be split")
        for axis, count in zip(AXES[: len(AXES) - dims], self.axes, strict=False):
            if count > 1:
                raise UsageError(
                    f"{axis}={count}: a tensor of {dims} spatial dims has no {axis}; "
                    f"split {', '.join(AXES[len(AXES) - dims :])} instead"
                )
        return self.axes[len(AXES) - dims :]

    def __str__(self) -> str:
        space = " x ".join(f"{axis} {count}" for axis, count in zip(AXES, self.axes, strict=True))
        return space if self.channels == 1 else f"{space} x channels {self.channels}"


class ProcessGrid:
    """The ranks of a communicator, arranged over space and samples; collective to make.

    Neighboring ranks share a sample: of depth x height x width x channels ranks each, the
    first ones form sample group 0, and so on. To arrange ranks in another order, pass a
    communicator that numbers them in that order.

    Attributes:
        shape: ranks along each axis.
        world: all ranks.
        space: the ranks that have this one's samples between them, row-major.
        filters: the ranks that share the filters of layers: those along `channels`, which have the
            same block; if `channels` is 1, those of `space`.
        holders: the ranks that have the same filters.
        samples: the ranks that own the same part of other samples.
        sample_group: number of this rank's group; each group has its own samples.
        sample_groups: number of groups.
        overlap: whether the interior is computed while halos travel. If not, the same kernels run
            on the same blocks, but later. On GPUs this is measured for each layer, and off where it
            does not pay.
        ways: measurements on GPUs, by layer and shapes; `explain` prints them.
        on_halo: called for each layer with a halo: whether the interior is computed during the
            exchange, and whether that was measured; `plan` uses it.
    """

    def __init__(
        self,
        depth: int = 1,
        height: int = 1,
        width: int = 1,
        comm: MPI.Comm | Communicator | None = None,
        overlap: bool = True,
        *,
        channels: int = 1,
    ) -> None:
        """Arrange the ranks of a communicator.

        Args:
            depth: ranks along the third dim from the end.
            height: ranks along the dim before the last.
            width: ranks along the last dim.
            comm: the ranks; by default all of MPI's world.
            overlap: compute the interior while halos travel.
            channels: ranks that share the filters of layers.

        Raises:
            UsageError: the number of ranks is not a multiple of the grid's.
        """
        self.shape = GridShape(depth, height, width, channels)
        self.world = world = _communicator(comm)
        if world.size % self.shape.size:
            raise UsageError(
                f"a grid of {self.shape} needs a multiple of {self.shape.size} ranks, not "
                f"{world.size}: start as many, or choose another grid"
            )
        self.overlap = overlap
        self.ways: dict[Hashable, Any] = {}
        self.on_halo: Callable[[bool, bool], None] | None = None
        self.sample_group, place = divmod(world.rank, self.shape.size)
        self.sample_groups = world.size // self.shape.size
        first = self.sample_group * self.shape.size
        block, channel = divmod(place, channels)
        self.space = world.group(range(first + channel, first + self.shape.size, channels))
        self.samples = world.group(range(place, world.size, self.shape.size))
        self.filters, self.holders = self.space, self.samples
        if channels > 1:
            begin = first + block * channels
            self.filters = world.group(range(begin, begin + channels))
            self.holders = world.group(range(channel, world.size, channels))

    def coordinates(self, dims: int) -> tuple[int, ...]:
        """Return the place of this rank along the last `dims` dims of a tensor.

        Args:
            dims: number of spatial dims, 1 to 3.
        """
        self.shape.parts(dims)
        return coordinates_of(self.shape.axes, self.space.rank)[len(AXES) - dims :]

    def explain(self) -> str:
        """Report how halos travel and which layers overlap them; returns a line for each shape."""
        if not self.ways:
            return "no layer was measured: on the CPU every interior is computed beneath its halo"
        return "\n".join(map(str, self.ways.values()))

    def __repr__(self) -> str:
        return f"ProcessGrid({self.shape}; {self.sample_groups} sample groups)"


def _communicator(comm: MPI.Comm | Communicator | None) -> Communicator:
    if comm is not None and not hasattr(comm, "Isend"):
        return comm
    from mpi4py import MPI

    return DeviceCommunicator(MPI.COMM_WORLD if comm is None else cast("MPI.Comm", comm))
