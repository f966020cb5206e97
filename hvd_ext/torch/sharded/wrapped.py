"""The sharded DistributedOptimizer: each rank updates a part, and state is gathered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hvd_ext import variables
from hvd_ext.torch.job import lifecycle
from hvd_ext.torch.reproducible.reducer import ReproducibleShardedReducer
from hvd_ext.torch.sharded.elementwise import try_elementwise
from hvd_ext.torch.sharded.reducer import ShardedReducer
from hvd_ext.torch.sharded.shards import Shards
from hvd_ext.torch.sharded.state import ShardedState
from hvd_ext.torch.torch_internals import calls_step_hooks
from hvd_ext.torch.wrapped import DistributedMixin, derive


class ShardedMixin(DistributedMixin):
    """An optimizer whose step() updates the parts of parameters that this rank has summed.

    `state` holds whole parameters' state only between loading it and the next step.
    """

    _base: type[torch.optim.Optimizer]
    _reducer: ShardedReducer

    def _attach_shards(self, shards: Shards) -> None:
        self._shards = shards
        shards.keep_apart(vars(self))

    @property
    def state(self) -> Any:
        """The state of whole parameters; after a step it can be replaced, but not read."""
        return ShardedState(self._whole_state, self._shards)

    @state.setter
    def state(self, state: Any) -> None:
        self.__dict__["state"] = state
        self._shards.forget_state()

    @property
    def _whole_state(self) -> dict[Any, dict[str, Any]]:
        """Set the state, as torch does when it loads."""
        whole: dict[Any, dict[str, Any]] = self.__dict__["state"]
        return whole

    @property
    def own_state(self) -> dict[torch.Tensor, dict[str, Any]]:
        """The state that this rank keeps, for its parts of the parameters."""
        return self._shards.state

    def _exchange(self) -> None:
        self._reducer.reduce()

    @calls_step_hooks
    def _update(self, closure: Callable[[], Any] | None) -> Any:
        self._shards.bring_home()
        if closure is None:  # which would read parameters
            self._reducer.allow_parameters()
        result = self._shards.update(self, self._whole_state, self._reducer.adopt, closure)
        self._reducer.give_parameters()
        return result

    def make_state(self) -> None:
        """Take a step with zero gradients, as Horovod does to make state; collective.

        State that a rank has loaded is forgotten.
        """
        self.state.clear()
        self._reducer.make_zeros()
        self._update(None)

    def _clip(self, max_norm: float, norm_type: float, error_if_nonfinite: bool) -> Any:
        if isinstance(self._reducer, ReproducibleShardedReducer):
            self._reducer.show_sums()
            return super()._clip(max_norm, norm_type, error_if_nonfinite)
        self._reducer.adopt()
        return self._shards.clip(max_norm, norm_type, error_if_nonfinite)

    def whole_state(self) -> dict[Any, dict[str, Any]]:
        """Return the state by parameter, like the plain optimizer; a collective of all ranks.

        Raises:
            StallError: ranks did not reach this; names them.
        """
        topology = lifecycle.topology()
        occasion = "state_dict() of a sharded optimizer, which all ranks call"
        limit_s = variables.STALL_TIMEOUT_S.read()
        topology.allgather(None, limit_s, occasion)
        gathered = dict(self._shards.whole_state())
        return (gathered if self._shards.keep_state else {}) | self._whole_state

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, like the plain optimizer; a collective of all ranks.

        Raises:
            StallError: ranks did not reach this; names them.
        """
        state, newer, kept = self.whole_state(), self._whole_state, self._shards.keep_state
        self.__dict__["state"] = state  # torch's reads `state`
        self._shards.keep_state = False
        try:
            whole: dict[str, Any] = super().state_dict()
        finally:
            self.__dict__["state"], self._shards.keep_state = newer, kept
        return whole

    def load_state_dict(self, state_dict: Any) -> None:
        """As of DistributedMixin, of the whole state."""
        # The old state stays for now, because other ranks may ask for this rank's part of it.
        kept, self._shards.keep_state = self._shards.keep_state, False
        try:
            super().load_state_dict(state_dict)
        except BaseException:
            self._shards.keep_state = kept
            raise

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of DistributedMixin.

        Raises:
            UsageError: with the group's options, an element's update depends on more than it.
        """
        super().add_param_group(param_group)
        self._shards.changes_gradients |= try_elementwise(self, self._base).changes_gradients


def sharded_class(base: type[torch.optim.Optimizer]) -> type[ShardedMixin]:
    """Derive a class from an optimizer's, with the same name, that divides the update."""
    return derive((ShardedMixin, base), {"_base": base})
