"""Train a DistributedDataParallel model whose gradients are reduced in shared memory.

Run it: hvd-launch run -np 2 -- python examples/ddp.py
Or: torchrun --nproc-per-node 2 examples/ddp.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d

dist.init_process_group("gloo")  # mpirun alone needs init_method="mpi://"
torch.manual_seed(1)
network = torch.nn.Sequential(
    torch.nn.Linear(20, 200), torch.nn.Tanh(), torch.nn.Linear(200, 200), torch.nn.Linear(200, 1)
)
model = DistributedDataParallel(network, gradient_as_bucket_view=True)
exchange = hvd_ext.c10d.attach(model)  # the one line that is new
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

torch.manual_seed(dist.get_rank())
for step in range(100):
    x = torch.randn(32, 20)
    loss = (model(x) - x[:, :3].sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and step in (0, 99):
        print(f"step {step}: loss {loss.item():.4f}")
if dist.get_rank() == 0:
    print(exchange.explain())
dist.destroy_process_group()
