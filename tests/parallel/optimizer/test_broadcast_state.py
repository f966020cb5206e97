"""broadcast_optimizer_state: the root's state and options, in what each rank has already."""

from __future__ import annotations

import pytest
import torch

from tests.ranks.asserts import parallel_assert

pytestmark = pytest.mark.ranks(2)
in_both = pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])


class Masters(torch.optim.Optimizer):
    """Keeps float32 weights, a count of each element, and the mean of all in a list."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state["master"] = p.detach().float()
                    state["rises"] = torch.zeros_like(p, dtype=torch.int64)
                state["rises"] += p.grad > 0
                state["master"] -= group["lr"] * p.grad.float() / (1 + state["rises"] // 3)
                p.copy_(state["master"])


def layers(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def pass_over(model: torch.nn.Module, seed: int) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    model(x).square().mean().backward()


def same_on_both(comm, found: object, what: str) -> None:
    everyones = comm.allgather(found)
    parallel_assert(comm, everyones[0] == everyones[1], f"{what}: {everyones}")


def numbers(optimizer) -> list:
    """The state as numbers, with the dtypes."""
    return [
        [(name, str(value.dtype), value.tolist()) for name, value in entry.items()]
        for _, entry in sorted(optimizer.state_dict()["state"].items())
    ]


@in_both
@pytest.mark.parametrize("kind", ["momentum", "stateless", "adam"])
def test_a_schedule_made_before_wrapping_is_followed(comm, hvd, kind, sharded):
    model = layers()
    inner = {
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "stateless": lambda: torch.optim.SGD(model.parameters(), lr=0.1),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1)),
    }[kind]()
    schedule = torch.optim.lr_scheduler.LambdaLR(inner, lambda epoch: 1 / (1 + epoch))
    optimizer = hvd.DistributedOptimizer(inner, sharded=sharded)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(4):
        optimizer.zero_grad()
        pass_over(model, 2 * step + comm.rank)
        optimizer.step()
        schedule.step()
    parallel_assert(comm, float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.02))
    same_on_both(comm, [p.tolist() for p in model.parameters()], "weights")


@in_both
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
@pytest.mark.parametrize("has_state", ["every rank", "root", "no rank"])
def test_state_keeps_its_dtypes_and_its_place(comm, hvd, has_state, wrapped, sharded):
    if sharded and not wrapped:
        return
    model = layers(comm.rank).half()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    before = [p.tolist() for p in model.parameters()]
    optimizer = Masters(model.parameters(), lr=0.1 + comm.rank)
    if has_state == "every rank" or (has_state == "root" and comm.rank == 0):
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.01 * (1 + comm.rank))
        optimizer.step()
    for p, values in zip(model.parameters(), before, strict=True):
        p.data.copy_(torch.tensor(values))
    held = {p: dict(state) for p, state in optimizer.state.items()}
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, sharded=sharded)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if not sharded:  # whose state cannot be read
        of_entries = [optimizer.state[p].get(k) is v for p, s in held.items() for k, v in s.items()]
        parallel_assert(comm, all(of_entries), "other tensors")
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert [p.tolist() for p in model.parameters()] == before
    found = numbers(optimizer)
    assert [kind for entry in found for _, kind, _ in entry] == ["torch.float32", "torch.int64"] * 4
    same_on_both(comm, found, "state")


@in_both
def test_the_root_has_state_of_a_layer_that_is_frozen_now(comm, hvd, sharded):
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    if comm.rank == 0:
        pass_over(model, 5)
        optimizer.step()
        optimizer.zero_grad()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    before = [p.tolist() for p in model.parameters()]
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(optimizer, sharded=sharded)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert [p.tolist() for p in model.parameters()] == before
    same_on_both(comm, numbers(optimizer), "state")
    pass_over(model, comm.rank)
    optimizer.step()
    same_on_both(comm, numbers(optimizer), "state after a step")
    assert [p.tolist() for p in model[0].parameters()] == before[:2]


@in_both
def test_ranks_with_other_groups_are_told(comm, hvd, sharded):
    model = layers()
    parameters = list(model.parameters())
    groups = [{"params": parameters[:3]}, {"params": parameters[3:]}] if comm.rank else parameters
    inner = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sharded=sharded)
    if comm.rank == 0:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    else:
        with pytest.raises(Exception, match=r"groups of \[3, 1\] parameters.*rank 0 have \[4\]"):
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def test_lbfgs_is_refused_in_horovods_words(hvd):
    optimizer = torch.optim.LBFGS(layers().parameters())
    with pytest.raises(ValueError, match=r"cannot broadcast torch\.optim\.LBFGS state"):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
