"""Batches that all ranks can read; otherwise no rank takes the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_ext.data import DataLoader
from hvd_ext.errors import HvdExtError


class SamplesError(Exception):
    """An error on all ranks before a step whose samples some of them cannot read.

    Attributes:
        mine: the error of this rank, if it has one.
    """

    def __init__(self, mine: HvdExtError | None) -> None:
        super().__init__(mine)
        self.mine = mine

    def raise_mine(self) -> None:
        """Raise this rank's error as an error that ends the run.

        Raises:
            HvdExtError: this rank has one.
        """
        if self.mine:
            raise type(self.mine)(
                f"{self.mine}; no step was taken with it, and all steps before it are in the "
                "checkpoint: repair it and resume"
            )


def next_batch(loader: DataLoader, any_rank: Callable[[bool], bool]) -> Any:
    """The next batch of this rank, once each rank has its own. A collective.

    Args:
        loader: loader of this rank's batches.
        any_rank: whether a value is true on any rank, a collective.

    Raises:
        SamplesError: on every rank, if one cannot read its samples.
    """
    mine, batch = None, None
    try:
        batch = next(loader)
    except HvdExtError as error:
        mine = error
    if any_rank(mine is not None):
        raise SamplesError(mine)
    return batch
