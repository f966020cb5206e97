"""Recipes that differ in how the optimizer is used."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from tests.support.training.recipe import STEPS, Door, clip_and_step, cnn, mlp, recipe


@recipe
def torchvisions_reference_loop(door: Door) -> Any:
    """Warm-up and cosine made before wrapping, EMA, mixup, label smoothing, no decay of norms."""
    net = cnn()
    norms = [p for p in net.parameters() if p.ndim == 1]
    others = [p for p in net.parameters() if p.ndim > 1]
    groups = [{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": 1e-2}]
    inner = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    schedule = lr_scheduler.SequentialLR(
        inner,
        [
            lr_scheduler.LinearLR(inner, 0.1, total_iters=2),
            lr_scheduler.CosineAnnealingLR(inner, 5),
        ],
        milestones=[2],
    )
    optimizer = door.wrap(inner, net)
    ema = swa_utils.AveragedModel(
        net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    for step in range(STEPS):
        x, labels = door.batch(step, 4, 3, 6, 6)
        share = torch.distributions.Beta(0.2, 0.2).sample()
        wanted = F.one_hot(labels, 4).float()
        x, wanted = (share * v + (1 - share) * v.roll(1, 0) for v in (x, wanted))
        optimizer.zero_grad()
        F.cross_entropy(net(x), wanted, label_smoothing=0.1).backward()
        clip_and_step(optimizer, net.parameters(), 1.0)
        ema.update_parameters(net)
        schedule.step()
    return net, ema, optimizer, schedule.get_last_lr()


@recipe
def one_cycle_made_after_wrapping(door: Door) -> Any:
    net = cnn()
    optimizer = door.wrap(torch.optim.Adam(net.parameters(), 0.01), net)
    schedule = lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS)
    for step in range(STEPS):
        x, labels = door.batch(step, 4, 3, 6, 6)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
        schedule.step()
    return net, optimizer, schedule.get_last_lr()


@recipe
def cyclic_rate_made_before_wrapping(door: Door) -> Any:
    net = mlp(6, 8, 4)
    inner = torch.optim.RMSprop(net.parameters(), 0.01, momentum=0.9, centered=True)
    schedule = lr_scheduler.CyclicLR(inner, 0.001, 0.02, step_size_up=3)
    optimizer = door.wrap(inner, net)
    for step in range(STEPS):
        x, labels = door.batch(step, 5, 6)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
        schedule.step()
    return net, optimizer, schedule.get_last_lr()


@recipe
def plateau_of_a_mean_over_ranks(door: Door) -> Any:
    net = mlp(6, 8, 4)
    optimizer = door.wrap(torch.optim.Adam(net.parameters(), 0.01, amsgrad=True), net)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for step in range(STEPS):
        x, labels = door.batch(step, 5, 6)
        optimizer.zero_grad()
        off = F.cross_entropy(net(x), labels)
        off.backward()
        optimizer.step()
        schedule.step(door.hvd.allreduce(off.detach(), name=f"{door.name}.loss").item())
    return net, optimizer, [group["lr"] for group in optimizer.param_groups]


@recipe
def sharpness_aware(door: Door) -> Any:
    net = cnn()
    optimizer = door.wrap(torch.optim.SGD(net.parameters(), 0.05, 0.9), net)
    for step in range(STEPS):
        x, labels = door.batch(step, 4, 3, 6, 6)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.synchronize()
        with torch.no_grad():
            length = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            moved = [p.grad * (0.05 / (length + 1e-12)) for p in net.parameters()]
            for p, by in zip(net.parameters(), moved, strict=True):
                p.add_(by)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.synchronize()
        with torch.no_grad():
            for p, by in zip(net.parameters(), moved, strict=True):
                p.sub_(by)
        with optimizer.skip_synchronize():
            optimizer.step()
    return net, optimizer


@recipe
def lbfgs(door: Door) -> Any:
    net = mlp(6, 8, 1)
    optimizer = door.wrap(torch.optim.LBFGS(net.parameters(), 0.5, max_iter=4), net)
    x, _ = door.batch(0, 12, 6)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        off = net(x).square().mean()
        off.backward()
        optimizer.synchronize()
        mean: torch.Tensor = door.hvd.allreduce(off.detach(), name=f"{door.name}.loss")
        return mean

    for _ in range(3):
        with optimizer.skip_synchronize():
            optimizer.step(closure)
    return (net,)


@recipe
def stochastic_weight_averaging(door: Door) -> Any:
    net = cnn()
    optimizer = door.wrap(torch.optim.SGD(net.parameters(), 0.05, 0.9), net)
    mean, schedule = swa_utils.AveragedModel(net), swa_utils.SWALR(optimizer, 0.01, 2)
    for step in range(STEPS):
        x, labels = door.batch(step, 4, 3, 6, 6)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
        if step > 2:
            mean.update_parameters(net)
            schedule.step()
    with torch.no_grad():
        swa_utils.update_bn([door.batch(0, 4, 3, 6, 6)[0]], mean)
    return net, list(mean.parameters()), optimizer


@recipe
def lookahead(door: Door) -> Any:
    net = mlp(6, 8, 4)
    optimizer = door.wrap(torch.optim.RAdam(net.parameters(), 0.05), net)
    slow = [p.detach().clone() for p in net.parameters()]
    for step in range(STEPS):
        x, labels = door.batch(step, 5, 6)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
        if step % 3 == 2:
            for p, kept in zip(net.parameters(), slow, strict=True):
                kept.add_(p.detach() - kept, alpha=0.5)
                p.data.copy_(kept)
    return net, slow, optimizer


@recipe
def weight_norm_after_wrapping(door: Door) -> Any:
    net = mlp(6, 8, 8, 4)
    optimizer = door.wrap(torch.optim.AdamW(net.parameters(), 0.02), net)
    nn.utils.parametrizations.weight_norm(net[2])
    for step in range(STEPS):
        x, labels = door.batch(step, 5, 6)
        optimizer.zero_grad()
        net.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
    return net, optimizer


@recipe
def pruned_after_wrapping(door: Door) -> Any:
    net = mlp(6, 8, 8, 4)
    optimizer = door.wrap(torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=0.01), net)
    for step in range(STEPS):
        if step in (1, 4):
            for layer in (net[0], net[2]):
                nn.utils.prune.l1_unstructured(layer, "weight", 0.3)
        x, labels = door.batch(step, 5, 6)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
    return net, optimizer


@recipe
def spectral_norm_and_weights_clipped_after_steps(door: Door) -> Any:
    net = mlp(6, 8, 8, 4)
    nn.utils.parametrizations.spectral_norm(net[2])
    optimizer = door.wrap(torch.optim.Adam(net.parameters(), 0.02), net)
    for step in range(STEPS):
        x, labels = door.batch(step, 5, 6)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
        with torch.no_grad():
            for p in net.parameters():
                p.clamp_(-0.3, 0.3)
    return net, optimizer


@recipe
def resumed_from_a_checkpoint(door: Door) -> Any:
    saved: Any = None
    for part in range(2):
        net = mlp(6, 8, 4)
        inner = torch.optim.AdamW(net.parameters(), 0.02)
        schedule = lr_scheduler.StepLR(inner, 2, 0.5)
        if saved:
            net.load_state_dict(saved[0])
            inner.load_state_dict(saved[1])
            schedule.load_state_dict(saved[2])
        named = list(net.named_parameters(f"{door.name}.{part}"))
        optimizer = door.hvd.DistributedOptimizer(inner, named, **door.options)
        if saved:  # Horovod drops the state when it wraps an optimizer
            optimizer.load_state_dict(saved[1])
            schedule = lr_scheduler.StepLR(optimizer, 2, 0.5)
            schedule.load_state_dict(saved[2])
        door.hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        for step in range(5):
            x, labels = door.batch(5 * part + step, 5, 6)
            optimizer.zero_grad()
            F.cross_entropy(net(x), labels).backward()
            optimizer.step()
            schedule.step()
        states = net.state_dict(), optimizer.state_dict(), schedule.state_dict()
        saved = copy.deepcopy(states)
    return saved[0], saved[1]["state"], schedule.get_last_lr()


@recipe
def first_order_maml(door: Door) -> Any:
    """Gradients that the script writes itself: no backward pass of the model makes them."""
    net = mlp(6, 8, 4)
    optimizer = door.wrap(torch.optim.Adam(net.parameters(), 0.02), net)
    for step in range(STEPS):
        inner = copy.deepcopy(net)
        for part in range(2):
            x, labels = door.batch(2 * step + part, 5, 6)
            grads = torch.autograd.grad(F.cross_entropy(inner(x), labels), list(inner.parameters()))
            if part == 0:
                with torch.no_grad():
                    for p, grad in zip(inner.parameters(), grads, strict=True):
                        p.sub_(grad, alpha=0.1)
        optimizer.zero_grad()
        for p, grad in zip(net.parameters(), grads, strict=True):
            p.grad = grad.clone()
        optimizer.step()
    return net, optimizer


@recipe
def autocast_to_bfloat16(door: Door) -> Any:
    net = mlp(6, 16, 4)
    optimizer = door.wrap(torch.optim.AdamW(net.parameters(), 0.02), net)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(STEPS):
        x, labels = door.batch(step, 8, 6)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            off = F.cross_entropy(net(x).float(), labels)
        scaler.scale(off).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    return net, optimizer


@recipe
def diffusion_with_an_average(door: Door) -> Any:
    net = mlp(7, 16, 6)
    ema = [p.detach().clone() for p in net.parameters()]
    optimizer = door.wrap(torch.optim.Adam(net.parameters(), 0.01), net)
    for step in range(STEPS):
        x, _ = door.batch(step, 8, 6)
        t, noise = torch.rand(8, 1), torch.randn(8, 6)
        found = net(torch.cat([x * (1 - t) + noise * t, t], 1))
        optimizer.zero_grad()
        F.mse_loss(found, noise).backward()
        clip_and_step(optimizer, net.parameters(), 1.0)
        for kept, p in zip(ema, net.parameters(), strict=True):
            kept.lerp_(p.detach(), 0.1)
    return net, ema, optimizer


@recipe
def warm_restarts_and_summed_gradients(door: Door) -> Any:
    net = cnn()
    optimizer = door.wrap(torch.optim.SGD(net.parameters(), 0.02, 0.9), net, op=door.hvd.Sum)
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)
    for step in range(STEPS):
        x, labels = door.batch(step, 4, 3, 6, 6)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
        schedule.step()
    return net, optimizer, schedule.get_last_lr()
