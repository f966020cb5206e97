"""Samples of a training run: which comes when, one file that holds them all, and reading ahead.

Importing this package starts no MPI and loads no torch.
"""

from hvd_ext.data.ahead import map_ahead
from hvd_ext.data.loader import DataLoader, Dataset, Statistics
from hvd_ext.data.order import Order, fingerprint, share
from hvd_ext.data.packed import PackedField, PackedFile, Tables
from hvd_ext.data.sources import Source

__all__ = [
    "DataLoader",
    "Dataset",
    "Order",
    "PackedField",
    "PackedFile",
    "Source",
    "Statistics",
    "Tables",
    "fingerprint",
    "map_ahead",
    "share",
]
