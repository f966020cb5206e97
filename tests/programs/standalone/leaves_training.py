"""Rank 1 shuts down after a part of a backward pass, where rank 0 takes the whole step."""

from __future__ import annotations

import torch

import hvd_ext.torch as hvd
from hvd_ext.errors import StallError

hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 5))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
)
x = torch.ones(1, 5)
for _ in range(6):  # the ranks agree on nothing else from then on
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if hvd.rank() == 1:
    model[1](x).sum().backward()
else:
    said = ""
    try:
        model(x).sum().backward()
        optimizer.step()
    except StallError as error:
        said = str(error)
    assert "rank 1 (" in said, said
    assert "ended before a gradient exchange" in said, said
    print("told at once", flush=True)
hvd.shutdown()
