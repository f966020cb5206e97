"""Ranks whose models, or settings, differ. Argument: in what."""

from __future__ import annotations

import os
import sys

import torch

import hvd_ext.torch as hvd

hvd.init()
odd = hvd.rank() == hvd.size() - 1
width = 7 if odd and sys.argv[1] == "shape" else 8
dtype = torch.float64 if odd and sys.argv[1] == "dtype" else torch.float32
layers = [torch.nn.Linear(4, width, dtype=dtype)]
if odd and sys.argv[1] == "more":
    layers.append(torch.nn.Linear(width, 3))
if odd and sys.argv[1] == "bucket":
    os.environ["HVD_EXT_BUCKET_BYTES"] = "1 KiB"
model = torch.nn.Sequential(*layers)
if odd and sys.argv[1] == "layout":
    model[0].weight = torch.nn.Parameter(torch.zeros(4, 8).t())
hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
print("not noticed")
