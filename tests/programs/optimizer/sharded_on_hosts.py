"""A sharded optimizer on several hosts: parameters and state as the unsharded one gives them.

Argument: the name of an optimizer.
"""

from __future__ import annotations

import sys

import torch

import hvd_ext.torch as hvd
from tests.support.optimizer.sharding import parameters, train

hvd.init()
torch.set_num_threads(1)


def moments(optimizer):
    state = optimizer.state_dict()["state"]
    return [v for of in state.values() for v in of.values() if isinstance(v, torch.Tensor)]


name = sys.argv[1]
for layout in ("one", "two"):
    model, optimizer = train(True, name=name, layout=layout)
    expected, plain = train(False, name=name, layout=layout)
    assert all(map(torch.equal, parameters(model), parameters(expected))), (name, layout)
    assert all(map(torch.equal, moments(optimizer), moments(plain))), (name, layout)
    print(f"ok {hvd.rank()} {name} {layout}")
hvd.shutdown()
