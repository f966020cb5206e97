"""Trains DDP models as a program that knows nothing of hvd_ext, and prints what came out."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

how = sys.argv[1]
torch.set_num_threads(1)
if how == "by default":
    dist.init_process_group()
else:
    dist.init_process_group("gloo")
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
if how == "sparse":
    net = torch.nn.Sequential(torch.nn.EmbeddingBag(50, 20, sparse=True), *net)
if how == "only-a-group":
    model = net
else:
    model = fully_shard(net) if how == "sharded" else DistributedDataParallel(net)
if how == "own hook":
    model.register_comm_hook(None, fp16_compress_hook)
if dist.get_rank() == 0 and how not in ("sharded", "only-a-group"):
    model.eval()(torch.randint(0, 50, (4, 3)) if how == "sparse" else torch.ones(4, 20))
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
for _ in range(5):
    x = torch.randint(0, 50, (16, 3)) if how == "sparse" else torch.randn(16, 20)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = [getattr(p, "full_tensor", p.clone)().detach().flatten() for p in model.parameters()]
hooks = [hook.__name__ for hook, _ in getattr(model, "_comm_hooks", [])]
if dist.get_rank() == 0:
    print(f"weights {torch.cat(weights).double().sum().item().hex()}")
    print(f"backend {dist.get_backend()} hooks {hooks}")
dist.destroy_process_group()
