"""A data loader whose worker process never has its first sample ready."""

from __future__ import annotations

import time

from torch.utils.data import DataLoader, Dataset


class SlowSamples(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        time.sleep(600)
        return index


def loader() -> DataLoader[int]:
    return DataLoader(SlowSamples(), num_workers=1)
