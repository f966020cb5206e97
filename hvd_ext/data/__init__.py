"""Samples of a training run: their order, one file that holds all of them, and prefetching.

Importing this package starts no MPI and loads no torch.
"""

from hvd_ext.data.ahead import map_ahead
from hvd_ext.data.loader import DataLoader, Dataset, Statistics
from hvd_ext.data.order import Order, fingerprint, share
from hvd_ext.data.packed.packed import PackedField, PackedFile
from hvd_ext.data.packed.sources import Source
from hvd_ext.data.packed.tables import Tables
from hvd_ext.data.store.budget import rank_budget
from hvd_ext.data.store.group_reading import GroupReader
from hvd_ext.data.store.store import MemoryStore, Records, StoreSize

__all__ = [
    "DataLoader",
    "Dataset",
    "GroupReader",
    "MemoryStore",
    "Order",
    "PackedField",
    "PackedFile",
    "Records",
    "Source",
    "Statistics",
    "StoreSize",
    "Tables",
    "fingerprint",
    "map_ahead",
    "rank_budget",
    "share",
]
