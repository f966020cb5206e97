"""Parameters that were frozen when their optimizer was made, and may be trained later."""

from __future__ import annotations

import torch

from hvd_ext.errors import UsageError
from hvd_ext.torch.own import is_own
from hvd_ext.torch.parameters import NamedParameters, trainable


class Frozen:
    """The parameters of one optimizer that are not exchanged yet.

    Attributes:
        can_thaw: whether they may join the exchange.
    """

    def __init__(self) -> None:
        self.can_thaw = True
        self._parameters: list[tuple[str, torch.nn.Parameter]] = []

    def add(self, pairs: NamedParameters) -> None:
        """Keep the parameters that are frozen."""
        self._parameters += [(n, p) for n, p in pairs if not p.requires_grad and not is_own(p)]

    def take(self) -> NamedParameters:
        """Return the parameters that are no longer frozen, and forget them.

        Raises:
            UsageError: there are some, and they cannot join.
        """
        if not any(p.requires_grad for _, p in self._parameters):
            return ()
        unfrozen = trainable(self._parameters)
        if not self.can_thaw:
            raise UsageError(
                f"{unfrozen[0][0]!r} was frozen when DistributedOptimizer() was called, and with "
                "sync= nodes exchange what was trained then: call it again after unfreezing"
            )
        self._parameters = [pair for pair in self._parameters if not pair[1].requires_grad]
        return unfrozen
