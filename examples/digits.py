"""Learn to read handwritten digits on several ranks.

Run it: hvd-launch run -np 2 -- python examples/digits.py
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

import hvd_ext.torch as hvd  # was: import horovod.torch as hvd

EPOCHS = 20
BATCH = 32

hvd.init()
torch.manual_seed(1)
images, labels = (torch.from_numpy(np.asarray(a)) for a in load_digits(return_X_y=True))
images = images.float().view(-1, 1, 8, 8) / 16
order = torch.randperm(len(images))  # the same on every rank
learned, held_out = order[:-300], order[-300:]

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.Conv2d(32, 64, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(64 * 16, 10),
)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9),
    named_parameters=model.named_parameters(),
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

for _ in range(EPOCHS):
    # All ranks draw the same permutation, and divide it among them.
    shuffled = learned[torch.randperm(len(learned))]
    steps = len(shuffled) // (BATCH * hvd.size())
    for step in range(steps):
        mine = shuffled[(step * hvd.size() + hvd.rank()) * BATCH :][:BATCH]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()

with torch.inference_mode():
    right = (model(images[held_out]).argmax(1) == labels[held_out]).float().mean()
if hvd.rank() == 0:
    print(f"{hvd.size()} ranks read {right:.1%} of the held-out digits")
