"""Uses an optimizer after hvd.shutdown(), which is refused. Argument, if any: ranks of a node."""

from __future__ import annotations

import sys

import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext.errors import UsageError

if len(sys.argv) > 1:
    # Every so many ranks are a node by themselves, as far as hvd_ext is told.
    from hvd_ext.torch import lifecycle
    from tests.pretended_nodes import pretend

    lifecycle.discover = lambda comm, timeout_s: pretend(comm, int(sys.argv[1]))

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 2))
inner = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
model(torch.full((3, 6), 1.0 + hvd.rank())).sum().backward()
optimizer.step()
rank = hvd.rank()
hvd.shutdown()
optimizer.zero_grad()
with pytest.raises(UsageError, match=r"after hvd.shutdown\(\)"):
    model(torch.ones(3, 6)).sum().backward()
print(f"ok {rank}")
