"""Filter parallelism: ranks that have the same input share a layer's filters.

    input                 x    x       the same on each of the ranks; a split one is gathered first
    filters              W0    W1      each has rows of the weight, their gradients, their state
    their outputs        y0    y1      computed where the filters are
    exchanged          y0 y1  y0 y1    and the layer's output is what it would have been

The forward pass sums nothing over ranks, so all ranks have the same bits. In backward, each rank
computes its filters' contribution to the gradient of x; the gradient is the sum of these.

Source: Dryden et al., Channel and filter parallelism for large-scale CNN training, SC 2019.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hvd_ext.errors import UsageError
from hvd_ext.spatial.exchange.replicated import average_gradient, from_first, to_partitioned
from hvd_ext.spatial.geometry.partition import shard
from hvd_ext.spatial.grid import ProcessGrid
from hvd_ext.spatial.layers.gather import gather, scatter_over
from hvd_ext.spatial.layers.operands import aligned, over, unsplit
from hvd_ext.spatial.tensor import SpatialTensor
from hvd_ext.spatial.torch_internals import become, convolve

# Layers that can be shared, and the number of dims after an output's channels.
KINDS: dict[type[nn.Module], int] = {nn.Linear: 0, nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
_NAMES = ("weight", "bias")
_ATTRIBUTE = "_hvd_ext_filters"


class OwnParameter(nn.Parameter):
    """A parameter of which each rank has separate rows, with complete gradients.

    hvd_ext.torch's optimizer, which never imports this file, recognizes it by `hvd_ext_own` and
    does not reduce it.
    """

    hvd_ext_own = True

    def expand_as(self, other: Tensor) -> Tensor:
        """Refuse Horovod's optimizer before it averages rows with other ranks' rows."""
        if other is not self:
            return super().expand_as(other)
        raise UsageError(
            "horovod.torch's DistributedOptimizer cannot take a model with split_filters, whose "
            "each rank has its own filters: use hvd_ext.torch's"
        )


@dataclass(frozen=True, eq=False)
class Filters:
    """The division of a layer's filters.

    Attributes:
        grid: grid over which samples are split.
        shares: the ranks that share the filters, along its width.
        count: number of the layer's filters.
        dims: number of an output's dims after its channels.
    """

    grid: ProcessGrid
    shares: ProcessGrid
    count: int
    dims: int

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's rows of a weight or bias, a view."""
        (rows,) = shard((self.count,), self.shares.shape.parts(1), self.shares.coordinates(1))
        return whole[slice(*rows)]

    def whole(self, own: Tensor, behind: int) -> Tensor:
        """Join all ranks' parts along the dim before the last `behind`; a collective."""
        parts = SpatialTensor(own, self.shares, (self.count,), behind)
        return gather(parts).contiguous()

    def __deepcopy__(self, memo: Any) -> Filters:
        return self


def layers_with_filters(model: nn.Module, ranks: int) -> dict[str, nn.Module]:
    """Return the layers of `model`, by path, whose filters this many ranks can share.

    These are linear layers and convolutions with groups=1, at least as many filters as ranks, and
    parameters that no other layer has.
    """
    modules = list(model.modules())
    users = Counter(id(p) for module in modules for p in _parameters(module).values())
    return {
        name: module
        for name, module in model.named_modules()
        # A derived class may use its weight in any way.
        if type(module) in KINDS
        and getattr(module, "groups", 1) == 1
        and "weight" in _parameters(module)
        and cast(Tensor, module.weight).shape[0] >= ranks
        and all(users[id(p)] == 1 for p in _parameters(module).values())
    }


def share_filters(model: nn.Module, grid: ProcessGrid, names: Sequence[str]) -> None:
    """Give each rank only its own filters of some layers; a collective of all ranks of `grid`.

    Weights are those of the first rank, of which every rank keeps its rows.

    Args:
        model: changed in place; its parameters stay the same objects, with fewer rows.
        grid: its ranks along `channels` share the filters, or, if it has none, those that share a
            sample.
        names: names of layers, or of modules that contain them.

    Raises:
        UsageError: no layer of that name can be shared.
    """
    served = layers_with_filters(model, grid.filters.size)
    chosen: dict[str, nn.Module] = {}
    for name in names:
        found = {p: m for p, m in served.items() if p == name or p.startswith(f"{name}.")}
        if not found:
            raise UsageError(
                f"{name!r} in split_filters has no layer whose filters {grid.filters.size} ranks "
                "could share: name Linear or Conv layers with groups=1, at least as many filters "
                "as ranks, and weights that no other layer shares"
            )
        chosen |= found
    if not chosen or grid.filters.size == 1:
        return
    shares = ProcessGrid(width=grid.filters.size, comm=grid.filters)
    for module in chosen.values():
        count = cast(Tensor, module.weight).shape[0]
        _share(module, Filters(grid, shares, count, KINDS[type(module)]))


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return a module's own parameters by name; a parameter with two names appears twice."""
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _share(module: nn.Module, filters: Filters) -> None:
    for name in _NAMES:
        if (parameter := _parameters(module).get(name)) is not None:
            whole = from_first(parameter.detach(), filters.grid.world)
            # In place, so that an optimizer of this parameter continues to work.
            parameter.data = filters.own(whole).clone()
            parameter.grad = None
            become(parameter, OwnParameter)
    setattr(module, _ATTRIBUTE, filters)
    # Methods, unlike closures, belong to the copy in a copy of the module.
    module.forward = types.MethodType(_forward, module)
    module.register_state_dict_post_hook(_save_whole)
    module.register_load_state_dict_pre_hook(_load_own)


def _forward(module: Any, x: Any) -> Any:
    """Return the layer's output; this rank computes the part from its filters."""
    filters: Filters = getattr(module, _ATTRIBUTE)
    shares, holders = filters.shares.space, filters.grid.holders
    given = x
    if isinstance(x, SpatialTensor) and filters.grid.filters is filters.grid.space:
        x = gather(x)
    if isinstance(x, SpatialTensor):
        x = x.like(to_partitioned(x.local, shares))
    else:
        x = to_partitioned(x, shares)
    weight = average_gradient(module.weight, holders)
    bias = None if module.bias is None else average_gradient(module.bias, holders)
    own = convolve(module, x, weight, bias) if filters.dims else F.linear(x, weight, bias)
    if isinstance(own, SpatialTensor):
        return own.like(filters.whole(own.local, filters.dims))
    whole = filters.whole(own, filters.dims)
    if not isinstance(given, SpatialTensor):
        return whole
    what = "a layer with split_filters"
    if filters.dims:
        return scatter_over(whole, given.grid, over(given, filters.dims, what).parts)
    unsplit(given, -1, what)
    return given.like(aligned(whole, given).clone())


def filters_of(model: nn.Module) -> dict[nn.Parameter, Filters]:
    """Return the partition of each parameter of which ranks have separate rows."""
    return {
        parameter: getattr(module, _ATTRIBUTE)
        for module in model.modules()
        for parameter in _parameters(module).values()
        if isinstance(parameter, OwnParameter)
    }


def whole_gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of a module's own parameters, with shared ones joined; a collective."""
    filters: Filters | None = getattr(module, _ATTRIBUTE, None)
    return {
        name: filters.whole(p.grad, p.grad.ndim - 1)
        if filters and isinstance(p, OwnParameter)
        else p.grad
        for name, p in _parameters(module).items()
        if p.grad is not None
    }


def _save_whole(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Put whole parameters into a state_dict; a collective of the ranks that share filters."""
    filters: Filters = getattr(module, _ATTRIBUTE)
    for name in _NAMES:
        if (own := state.get(prefix + name)) is not None:
            with torch.no_grad():
                state[prefix + name] = filters.whole(own.detach(), own.ndim - 1)


def _load_own(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any, *others: Any
) -> None:
    """Take this rank's rows of the parameters in a state_dict."""
    if metadata.get("assign_to_params_buffers"):
        raise UsageError("load_state_dict(assign=True) of a model with split_filters: leave it out")
    filters: Filters = getattr(module, _ATTRIBUTE)
    for name in _NAMES:
        whole = state.get(prefix + name)
        if whole is not None and whole.shape[0] == filters.count:
            state[prefix + name] = filters.own(whole)
