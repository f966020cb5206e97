"""An ordinary Horovod script: it knows nothing of hvd_ext. Argument: where rank 0 writes."""

import pickle
import sys

import horovod.torch as hvd
import torch
from horovod.torch import DistributedOptimizer  # bound at import, as some scripts do

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
optimizer = DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
torch.manual_seed(hvd.rank())
for _ in range(10):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 20)).pow(2).mean()
    loss.backward()
    optimizer.step()
mean_loss = hvd.allreduce(loss.detach())
if hvd.rank() == 0:
    state = [p.detach().numpy() for p in model.parameters()]
    with open(sys.argv[1], "wb") as file:  # noqa: PTH123
        pickle.dump((mean_loss.item(), state, __name__, sys.argv), file)
hvd.shutdown()
