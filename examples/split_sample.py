"""Train on one image that two ranks share: each holds half of every activation.

Run it: hvd-launch run -np 2 -- python examples/split_sample.py
"""

import torch

import hvd_ext.torch as hvd
from hvd_ext import spatial

hvd.init()
torch.manual_seed(1)
image, target = torch.randn(1, 3, 257, 200), torch.rand(1, 1, 257, 200)


def network() -> torch.nn.Module:
    torch.manual_seed(2)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, padding=2),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 1, 3, padding=1),
    )


whole = network()  # the training of one rank with room for the whole image
grid = spatial.ProcessGrid(height=hvd.size())
split = spatial.convert(network(), grid)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(split.parameters(), lr=0.01), named_parameters=split.named_parameters()
)
reference = torch.optim.SGD(whole.parameters(), lr=0.01)
for step in range(5):
    optimizer.zero_grad()
    x, y = spatial.scatter(image, grid), spatial.scatter(target, grid)
    loss = torch.nn.functional.mse_loss(split(x), y)
    loss.backward()
    optimizer.step()

    reference.zero_grad()
    expected = torch.nn.functional.mse_loss(whole(image), target)
    expected.backward()
    reference.step()
    if hvd.rank() == 0:
        print(f"step {step}: loss {loss.item():.6f} split, {expected.item():.6f} whole")
