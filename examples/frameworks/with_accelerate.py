"""Accelerate on hvd_ext: the losses and weights are those of Gloo.

Run it: torchrun --nproc-per-node 2 examples/frameworks/with_accelerate.py
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import hvd_ext.c10d

hvd_ext.c10d.install()  # before Accelerate makes the process group

torch.manual_seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(512, 20)
samples = DataLoader(TensorDataset(x, x[:, :3].sum(1, keepdim=True)), batch_size=16, shuffle=True)
model, optimizer, samples = accelerator.prepare(model, optimizer, samples)
for _ in range(4):
    for inputs, targets in samples:
        with accelerator.accumulate(model):
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
accelerator.print(f"loss {accelerator.reduce(loss.detach(), 'mean').item():.6f}")
accelerator.end_training()
