"""Recipes that differ in what is trained."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.training.recipe import STEPS, Door, clip_and_step, cnn, mlp, recipe


@recipe
def packed_lstm(door: Door) -> Any:
    net = nn.ModuleList([nn.Embedding(20, 6), nn.LSTM(6, 8, 2, batch_first=True), nn.Linear(8, 4)])
    optimizer = door.wrap(torch.optim.Adam(net.parameters(), lr=0.01), net)
    for step in range(STEPS):
        door.seed(step)
        lengths = torch.randint(1, 9, (5,))
        words, labels = torch.randint(20, (5, 8)), torch.randint(4, (5,))
        optimizer.zero_grad()
        packed = nn.utils.rnn.pack_padded_sequence(
            net[0](words), lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = net[1](packed)
        F.cross_entropy(net[2](hidden[-1]), labels).backward()
        clip_and_step(optimizer, net.parameters())
    return net, optimizer


class LoRA(nn.Module):
    def __init__(self, inner: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inner.in_features) * 0.1)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + x @ self.down.t() @ self.up.t()


@recipe
def lora(door: Door) -> Any:
    net = nn.Sequential(LoRA(nn.Linear(6, 8)), nn.Tanh(), LoRA(nn.Linear(8, 4)))
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = door.wrap(torch.optim.AdamW(trained, lr=0.01), net)
    for step in range(STEPS):
        x, labels = door.batch(step, 5, 6)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
    return net, optimizer


@recipe
def frozen_layers_of_a_checkpoint(door: Door) -> Any:
    net = mlp(6, 8, 8, 4)
    inner = torch.optim.AdamW(net.parameters(), lr=0.01)
    for p in net.parameters():
        p.grad = torch.full_like(p, 0.1)
    inner.step()
    inner.zero_grad()
    net[0].requires_grad_(False)
    saved, inner = inner.state_dict(), torch.optim.AdamW(net.parameters(), lr=0.01)
    inner.load_state_dict(saved)
    named = list(net.named_parameters(door.name))
    optimizer = door.hvd.DistributedOptimizer(inner, named, **door.options)
    optimizer.load_state_dict(saved)
    for step in range(STEPS):
        x, labels = door.batch(step, 5, 6)
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()
    return net, optimizer


@recipe
def gan(door: Door) -> Any:
    maker, judge = mlp(3, 8, 6), mlp(6, 8, 1)
    of_maker = door.wrap(torch.optim.Adam(maker.parameters(), 0.01, betas=(0.5, 0.999)), maker)
    door.name += ".judge"
    of_judge = door.wrap(torch.optim.Adam(judge.parameters(), 0.01, betas=(0.5, 0.999)), judge)
    for step in range(STEPS):
        x, _ = door.batch(step, 5, 6)
        made = maker(torch.randn(5, 3))
        of_judge.zero_grad()
        (F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()).backward()
        of_judge.step()
        of_maker.zero_grad()
        judge.requires_grad_(False)
        F.softplus(-judge(made)).mean().backward()
        judge.requires_grad_(True)
        of_maker.step()
    return maker, judge, of_maker, of_judge


@recipe
def gradient_penalty(door: Door) -> Any:
    judge = mlp(6, 8, 1)
    optimizer = door.wrap(torch.optim.RMSprop(judge.parameters(), 0.01), judge)
    for step in range(STEPS):
        x, _ = door.batch(step, 5, 6)
        x.requires_grad_()
        optimizer.zero_grad()
        score = judge(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        (score.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
    return judge, optimizer


@recipe
def moco(door: Door) -> Any:
    query = cnn()
    key = copy.deepcopy(query).requires_grad_(False)
    optimizer = door.wrap(torch.optim.SGD(query.parameters(), 0.03, 0.9, weight_decay=1e-4), query)
    door.hvd.broadcast_parameters(key.state_dict(), root_rank=0)
    queue = F.normalize(torch.randn(16, 4, generator=torch.Generator().manual_seed(1)))
    for step in range(STEPS):
        x, _ = door.batch(step, 4, 3, 6, 6)
        with torch.no_grad():
            for p, q in zip(key.parameters(), query.parameters(), strict=True):
                p.mul_(0.99).add_(q, alpha=0.01)
            keys = F.normalize(key(x + 0.1 * torch.randn_like(x)))
        found = F.normalize(query(x))
        logits = torch.cat([(found * keys).sum(1, True), found @ queue.t()], 1) / 0.2
        optimizer.zero_grad()
        F.cross_entropy(logits, torch.zeros(4, dtype=torch.long)).backward()
        optimizer.step()
        everyones = door.hvd.allgather(keys, name=f"{door.name}.keys")
        queue = torch.cat([everyones, queue])[:16]
    return query, queue, optimizer


@recipe
def simclr(door: Door) -> Any:
    net = cnn(6)
    optimizer = door.wrap(torch.optim.SGD(net.parameters(), 0.05, 0.9), net)
    for step in range(STEPS):
        x, _ = door.batch(step, 4, 3, 6, 6)
        both = F.normalize(net(torch.cat([x, x + 0.1 * torch.randn_like(x)])))
        near = both @ both.t() / 0.5 - 1e9 * torch.eye(8)
        optimizer.zero_grad()
        F.cross_entropy(near, torch.arange(8).roll(4)).backward()
        optimizer.step()
    return net, optimizer


@recipe
def ppo(door: Door) -> Any:
    net = nn.ModuleDict({"actor": mlp(6, 8, 3), "critic": mlp(6, 8, 1)})
    optimizer = door.wrap(torch.optim.Adam(net.parameters(), 3e-3, eps=1e-5), net)
    for update in range(3):
        states, _ = door.batch(update, 16, 6)
        rewards = torch.randn(16)
        with torch.no_grad():
            policy = torch.distributions.Categorical(logits=net["actor"](states))
            actions, values = policy.sample(), net["critic"](states).squeeze(1)
            before, gain = policy.log_prob(actions), rewards - values
        for _ in range(2):
            for at in torch.randperm(16).split(8):
                policy = torch.distributions.Categorical(logits=net["actor"](states[at]))
                ratio = (policy.log_prob(actions[at]) - before[at]).exp()
                kept = torch.min(ratio * gain[at], ratio.clamp(0.8, 1.2) * gain[at]).mean()
                off = (net["critic"](states[at]).squeeze(1) - rewards[at]).square().mean()
                optimizer.zero_grad()
                (off * 0.5 - kept - 0.01 * policy.entropy().mean()).backward()
                clip_and_step(optimizer, net.parameters())
    return net, optimizer


@recipe
def dqn_with_a_target(door: Door) -> Any:
    net = mlp(6, 8, 3)
    optimizer = door.wrap(torch.optim.Adam(net.parameters(), 0.01), net)
    target = copy.deepcopy(net)
    for step in range(STEPS):
        x, actions = door.batch(step, 8, 6, classes=3)
        with torch.no_grad():
            wanted = torch.randn(8) + 0.9 * target(torch.randn(8, 6)).max(1).values
        optimizer.zero_grad()
        F.smooth_l1_loss(net(x).gather(1, actions[:, None]).squeeze(1), wanted).backward()
        optimizer.step()
        if step % 3 == 2:
            target.load_state_dict(net.state_dict())
    return net, target, optimizer


@recipe
def vae(door: Door) -> Any:
    net = nn.ModuleList([mlp(6, 8, 4), mlp(2, 8, 6)])
    optimizer = door.wrap(torch.optim.Adamax(net.parameters(), 0.01), net)
    for step in range(STEPS):
        x, _ = door.batch(step, 8, 6)
        mean, log_variance = net[0](x).chunk(2, 1)
        made = net[1](mean + torch.randn_like(mean) * (log_variance / 2).exp())
        apart = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        optimizer.zero_grad()
        (F.mse_loss(made, x) + 0.1 * apart).backward()
        optimizer.step()
    return net, optimizer


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.body(self.words(x), mask, is_causal=True))


@recipe
def language_model_with_tied_words_and_accumulation(door: Door) -> Any:
    net = Language()
    flat = [p for p in net.parameters() if p.ndim < 2]
    square = [p for p in net.parameters() if p.ndim >= 2]
    groups = [{"params": square, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
    inner = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    optimizer = door.wrap(inner, net, backward_passes_per_step=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            door.seed(2 * step + part)
            words = torch.randint(20, (3, 7))
            logits = net(words[:, :-1])
            (F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()) / 2).backward()
        optimizer.step()
    return net, optimizer


@recipe
def distillation(door: Door) -> Any:
    teacher, student = cnn().eval(), cnn()
    door.hvd.broadcast_parameters(teacher.state_dict(), root_rank=0)
    optimizer = door.wrap(torch.optim.SGD(student.parameters(), 0.05, 0.9), student)
    for step in range(STEPS):
        x, labels = door.batch(step, 4, 3, 6, 6)
        with torch.no_grad():
            wanted = (teacher(x) / 2).softmax(1)
        found = student(x)
        soft = F.kl_div((found / 2).log_softmax(1), wanted, reduction="batchmean")
        optimizer.zero_grad()
        (soft * 4 + F.cross_entropy(found, labels)).backward()
        optimizer.step()
    return student, optimizer


@recipe
def checkpointed_layers(door: Door) -> Any:
    net = cnn()
    optimizer = door.wrap(torch.optim.SGD(net.parameters(), 0.05, 0.9), net)
    for step in range(STEPS):
        x, labels = door.batch(step, 4, 3, 6, 6)
        optimizer.zero_grad()
        y = checkpoint(net[:3], x, use_reentrant=False)
        y = checkpoint(net[3:6], y, use_reentrant=False)
        F.cross_entropy(net[6:](y), labels).backward()
        optimizer.step()
    return net, optimizer


@recipe
def stochastic_depth(door: Door) -> Any:
    net = nn.ModuleList([nn.Linear(6, 6) for _ in range(5)] + [nn.Linear(6, 4)])
    optimizer = door.wrap(torch.optim.SGD(net.parameters(), 0.05, 0.9), net)
    for step in range(STEPS):
        x, labels = door.batch(step, 5, 6)
        for layer in net[:5]:
            if torch.rand(()) < 0.7:  # others on each rank
                x = x + torch.tanh(layer(x))
        optimizer.zero_grad()
        F.cross_entropy(net[5](x), labels).backward()
        optimizer.step()
    return net, optimizer


@recipe
def heads_of_other_tasks(door: Door) -> Any:
    net = nn.ModuleDict({"body": mlp(6, 8), "0": nn.Linear(8, 4), "1": nn.Linear(8, 2)})
    uncertain = nn.Parameter(torch.zeros(2))
    net.register_parameter("uncertain", uncertain)
    optimizer = door.wrap(torch.optim.NAdam(net.parameters(), 0.01), net)
    for step in range(STEPS):
        task = (step + door.rank) % 2
        x, labels = door.batch(step, 5, 6, classes=4 - 2 * task)
        optimizer.zero_grad()
        off = F.cross_entropy(net[str(task)](torch.tanh(net["body"](x))), labels)
        (off * (-uncertain[task]).exp() + uncertain[task]).backward()
        optimizer.step()
    return net, optimizer


@recipe
def triplets(door: Door) -> Any:
    net = mlp(6, 8, 4)
    optimizer = door.wrap(torch.optim.Adagrad(net.parameters(), 0.05), net)
    for step in range(STEPS):
        x, _ = door.batch(step, 5, 6)
        near, far = x + 0.1 * torch.randn_like(x), torch.randn_like(x)
        optimizer.zero_grad()
        F.triplet_margin_loss(net(x), net(near), net(far)).backward()
        optimizer.step()
    return net, optimizer


@recipe
def speech_with_ctc(door: Door) -> Any:
    net = nn.ModuleList([nn.GRU(6, 5, bidirectional=True, batch_first=True), nn.Linear(10, 5)])
    optimizer = door.wrap(torch.optim.Adadelta(net.parameters()), net)
    for step in range(STEPS):
        door.seed(step)
        sounds, text = torch.randn(3, 12, 6), torch.randint(1, 5, (3, 4))
        logits = net[1](net[0](sounds)[0]).log_softmax(2).transpose(0, 1)
        optimizer.zero_grad()
        F.ctc_loss(logits, text, torch.full((3,), 12), torch.randint(1, 5, (3,))).backward()
        optimizer.step()
    return net, optimizer


@recipe
def adversarial_inputs(door: Door) -> Any:
    net = cnn()
    optimizer = door.wrap(torch.optim.SGD(net.parameters(), 0.05, 0.9), net)
    for step in range(STEPS):
        x, labels = door.batch(step, 4, 3, 6, 6)
        x.requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(net(x), labels), x)
        optimizer.zero_grad()
        F.cross_entropy(net((x + 0.03 * slope.sign()).detach()), labels).backward()
        optimizer.step()
    return net, optimizer


@recipe
def words_with_sparse_gradients(door: Door) -> Any:
    net = nn.ModuleList([nn.Embedding(12, 6, sparse=True), nn.Linear(6, 4)])
    # Horovod's SGD adds a sparse gradient, for which torch rounds the product with the rate; torch
    # does not for a dense one. A product with a power of 2 is exact.
    inner = torch.optim.SGD(net.parameters(), 0.125, momentum=0.5)
    optimizer = door.wrap(inner, net, sparse_as_dense=True)
    for step in range(STEPS):
        door.seed(step)
        words, labels = torch.randint(12, (5, 7)), torch.randint(4, (5,))
        optimizer.zero_grad()
        F.cross_entropy(net[1](net[0](words).mean(1)), labels).backward()
        optimizer.step()
    return net, optimizer
