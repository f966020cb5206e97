"""The exchange of one optimizer's gradients, as the optimizer sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hvd_ext.torch.parameters import NamedParameters
    from hvd_ext.torch.reduction.frozen import Frozen
    from hvd_ext.torch.reduction.placed import Observer
    from hvd_ext.torch.reduction.residuals import Residuals


class Reduces(Protocol):
    """The methods of Reducer.

    Attributes:
        number: number among the optimizers of this process.
        frozen: parameters that join the exchange once they are trained, on all ranks at once.
        join_refusal: why this rank may not join other ranks' steps with zeros; None if it may.
    """

    number: int
    frozen: Frozen
    join_refusal: str | None

    @property
    def in_flight(self) -> bool:
        """Whether this rank has a part of the step's gradients."""

    @property
    def has_residuals(self) -> bool:
        """Whether compression may have left residuals that are not sent yet."""

    def explain(self) -> str: ...
    def add(self, named_parameters: NamedParameters) -> None: ...
    def set_passes_per_step(self, passes: int) -> None: ...
    def synchronize(self) -> None: ...
    def reset(self) -> None: ...
    def observe(self, observer: Observer | None) -> None: ...
    def drain(self) -> Residuals: ...
    def keep(self, drained: Residuals) -> None: ...
    def leave_step(self) -> None: ...
    def take_part(self) -> None: ...
    def close(self) -> None: ...
