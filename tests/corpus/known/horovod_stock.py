"""A small training on Horovod with its defaults."""

import horovod.torch as hvd
import torch

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(16, 256)).sum().backward()
    optimizer.step()
